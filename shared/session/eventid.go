package session

import (
	"encoding/base32"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// ID names a session: at least 128 random bits, visible ASCII, no '/' and no '.'.
type ID string

// StreamID names a request stream: one for each client POST (or frame) that
// holds requests, unique for ever. It is also the deliver id of that message.
// The zero value is the common stream of a session.
type StreamID string

// Common is the stream of everything that belongs to no request.
const Common StreamID = ""

// LegacySSE is the stream of everything that is said in a session of HTTP+SSE, which
// has one stream for all: whoever appends an event of such a session copies it
// there, in the order of the appends. No other session has it.
const LegacySSE StreamID = "out"

// Index is the place of an event in its stream. The first event has index 1;
// cursor 0 is before the first.
type Index int64

// Generation counts the lives of a box and fences them: it never goes down.
type Generation int64

var ids = base32.HexEncoding.WithPadding(base32.NoPadding)

// NewID draws a session id: 32 characters with more than 150 random bits.
func NewID() ID {
	a, b := uuid.New(), uuid.New()
	return ID(strings.ToLower(ids.EncodeToString(append(a[:], b[:4]...))))
}

// NewStreamID draws a stream id (uuid7, 26 characters, sorts by time).
func NewStreamID() StreamID {
	u := uuid.Must(uuid.NewV7())
	return StreamID(strings.ToLower(ids.EncodeToString(u[:])))
}

// Time is when the stream began, to the millisecond; zero for the common stream
// and for what is no stream id.
func (s StreamID) Time() time.Time {
	b, err := ids.DecodeString(strings.ToUpper(string(s)))
	if err != nil || len(b) != len(uuid.UUID{}) {
		return time.Time{}
	}
	sec, nsec := uuid.UUID(b).Time().UnixTime()
	return time.Unix(sec, nsec)
}

// NewNonce draws a short random word for leases, owners and poll cursors.
func NewNonce() string {
	u := uuid.New()
	return strings.ToLower(ids.EncodeToString(u[:10]))
}

// EventID is what a client sees as an SSE id: the cursor to come back with.
//
//	<index>                     an event of the common stream
//	<index>/<stream>            an event of a request stream
//	<index>.<nonce>             a bare cursor on the common stream (no event)
//	<index>.<nonce>/<stream>    a bare cursor on a request stream
//	<index>.<session>/out       an event of the legacy SSE stream, or a cursor on it
//
// A bare cursor replays exactly what its index replays; the nonce only makes the
// id differ from one response to the next, which clients need (a repeated id
// kills go-sdk's connection). Ids are unique in a session for ever.
type EventID struct {
	Stream StreamID
	Index  Index
	Nonce  string
}

// String returns the wire form.
func (e EventID) String() string {
	s := strconv.FormatInt(int64(e.Index), 10)
	if e.Nonce != "" {
		s += "." + e.Nonce
	}
	if e.Stream != Common {
		s += "/" + string(e.Stream)
	}
	return s
}

// EventIDError says which part of an event id could not be read.
type EventIDError struct {
	Part string // "length", "index", "nonce" or "stream"
	ID   string // as it came, cut to 100 bytes
}

// Error says what is wrong with which id and what to do.
func (e *EventIDError) Error() string {
	return "event id " + strconv.Quote(e.ID) + " has a malformed " + e.Part +
		"; send back an id from this session unchanged"
}

// Unwrap makes every EventIDError an Invalid.
func (e *EventIDError) Unwrap() error { return Invalid }

// maxEventID is above what String makes (20 + 1 + 32 + 1 + 26).
const maxEventID = 100

// ParseEventID reads what String wrote. Errors are *EventIDError (Invalid). An
// id that parses may still be foreign or from the future: it then replays
// nothing.
func ParseEventID(s string) (EventID, error) {
	if len(s) > maxEventID || s == "" {
		return EventID{}, &EventIDError{Part: "length", ID: s[:min(len(s), maxEventID)]}
	}
	var e EventID
	head, stream, found := strings.Cut(s, "/")
	if found {
		if !isWord(stream) {
			return EventID{}, &EventIDError{Part: "stream", ID: s}
		}
		e.Stream = StreamID(stream)
	}
	index, nonce, found := strings.Cut(head, ".")
	if found {
		if !isWord(nonce) {
			return EventID{}, &EventIDError{Part: "nonce", ID: s}
		}
		e.Nonce = nonce
	}
	n, err := strconv.ParseInt(index, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != index {
		return EventID{}, &EventIDError{Part: "index", ID: s}
	}
	e.Index = Index(n)
	return e, nil
}

func isWord(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
