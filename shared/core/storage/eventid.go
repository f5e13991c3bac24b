package storage

import (
	"encoding/base32"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// ID names a session. It is visible ASCII without '/' and '.', and has at least 128
// random bits.
type ID string

// StreamID names a stream of a session. Each client message (a POST or a WebSocket frame) with requests
// has a stream of its own. The ID of the stream is unique, and identifies the message on its way to a
// box. The zero value is the standalone stream of the session.
type StreamID string

// Standalone is the stream of the messages that belong to no request.
const Standalone StreamID = ""

// LegacySSE is the one stream that an HTTP+SSE client reads. An instance that appends an event to
// another stream of an HTTP+SSE session also copies it to this one. In a session with a group, the
// stream has messages between instances (package aggregate). No other session has this stream.
const LegacySSE StreamID = "out"

// Index is the position of an event in its stream, from 1. As a cursor it means "after this
// event"; 0 is before the first.
type Index int64

// Generation counts how often a box was woken. It never decreases. When a runner with a higher
// Generation has written, writes of one with a lower Generation fail.
type Generation int64

var ids = base32.HexEncoding.WithPadding(base32.NoPadding)

// NewID returns a new session ID: 32 characters with more than 150 random bits.
func NewID() ID {
	a, b := uuid.New(), uuid.New()
	return ID(strings.ToLower(ids.EncodeToString(append(a[:], b[:4]...))))
}

// In returns id, which [NewID] has made, with the number of a box. See [BoxID].
func (id ID) In(box int) ID {
	if box == 0 {
		return id
	}
	return ID(string(id) + "-" + strconv.Itoa(box))
}

// Box returns the number of the session's box, 0 for an ID of another form.
func (id ID) Box() int {
	_, number, _ := cutLast(string(id), "-")
	return boxNumber(number)
}

// NewStreamID returns a new stream ID: a UUIDv7 in 26 characters, which sorts by time.
func NewStreamID() StreamID {
	u := uuid.Must(uuid.NewV7())
	return StreamID(strings.ToLower(ids.EncodeToString(u[:])))
}

// keptSign ends each ID that [NewKeptStreamID] makes. No other ID ends with it.
const keptSign = "x"

// NewKeptStreamID returns a new stream ID that tells drivers to keep the last batch of the stream until
// it expires; see [Log].
func NewKeptStreamID() StreamID { return NewStreamID() + keptSign }

// Kept reports whether the ID is one of [NewKeptStreamID].
func (s StreamID) Kept() bool { return strings.HasSuffix(string(s), keptSign) }

// Time returns when the stream began, to the millisecond. It is zero for Standalone,
// LegacySSE, and a string that is no stream ID.
func (s StreamID) Time() time.Time {
	b, err := ids.DecodeString(strings.ToUpper(strings.TrimSuffix(string(s), keptSign)))
	if err != nil || len(b) != len(uuid.UUID{}) {
		return time.Time{}
	}
	sec, nsec := uuid.UUID(b).Time().UnixTime()
	return time.Unix(sec, nsec)
}

// NewNonce returns a random word of 16 characters, for leases, owners and event ids.
func NewNonce() string {
	u := uuid.New()
	return strings.ToLower(ids.EncodeToString(u[:10]))
}

// EventID is the SSE id that a client gets with an event and comes back with, as
// Last-Event-ID. Its wire forms are:
//
//	<index>                     an event of the standalone stream
//	<index>/<stream>            an event of a request stream
//	<index>.<nonce>             the position after that event, in the standalone stream
//	<index>.<nonce>/<stream>    the position after that event, in a request stream
//	<index>.<session>/out       an event of the LegacySSE stream, or the position after it
//
// A response begins with an id of a position, so that the client can come back before it has an event.
// The nonce makes this id different in each response, because a repeated id breaks the connection of
// some clients (go-sdk). IDs are unique in a session.
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
	if e.Stream != Standalone {
		s += "/" + string(e.Stream)
	}
	return s
}

// BadEventID returns the error for an event id with a malformed part. Its code is Invalid. The caller
// cuts id to 100 bytes.
func BadEventID(part, id string) error {
	return Errorf(Invalid, "event id %q has a malformed %s; send back an id from this session unchanged", id, part)
}

// maxEventID is more than the longest id that String makes (20 + 1 + 32 + 1 + 27).
const maxEventID = 100

// ParseEventID reads what [EventID.String] wrote. An id of another session, or one that
// was not given out yet, parses too; it replays nothing. Errors: Invalid.
func ParseEventID(s string) (EventID, error) {
	if len(s) > maxEventID || s == "" {
		return EventID{}, BadEventID("length", s[:min(len(s), maxEventID)])
	}
	var e EventID
	head, stream, found := strings.Cut(s, "/")
	if found {
		if !isWord(stream) {
			return EventID{}, BadEventID("stream", s)
		}
		e.Stream = StreamID(stream)
	}
	index, nonce, found := strings.Cut(head, ".")
	if found {
		if !isWord(nonce) {
			return EventID{}, BadEventID("nonce", s)
		}
		e.Nonce = nonce
	}
	n, err := strconv.ParseInt(index, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != index {
		return EventID{}, BadEventID("index", s)
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
