package frame

import (
	"bytes"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Version of the frame layout, in every header.
const Version = 1

// Limits of the relay, in bytes. API Gateway's own are 131,072 for a message and
// 32,768 for a WebSocket frame.
const (
	MaxFrame   = 120_000
	MaxPiece   = 100_000
	MaxWSFrame = 32_768
	MaxMessage = 16 << 20
	MaxJoined  = MaxMessage + 1<<20
)

// Type of a frame.
type Type string

// Runner to host.
const (
	Hello  Type = "hello"  // box gen token runner link task questions; first on a connection, and as ping
	Pull   Type = "pull"   // box gen runner n; what waits in the inbox?
	Taken  Type = "taken"  // box gen tickets; these are being executed
	Ask    Type = "ask"    // box gen id round ticket notAfter inbox; this came late, may it be executed?
	Events Type = "events" // box gen seq session items tickets + payload; one batch. tickets: put these taken marks first
	Status Type = "status" // box gen session ticket process phase detail era + handshake payload
	Bye    Type = "bye"    // box gen runner link looks; from now on nothing is executed
	Whole  Type = "whole"  // box gen runner frame of; all parts are there
	Get    Type = "get"    // box gen runner n owner; where is the newest snapshot?
	Put    Type = "put"    // box gen runner n owner size; where may another go?
	Done   Type = "done"   // box gen runner n owner object; it is there
	Forget Type = "forget" // box gen runner n owner; it is of no use any more
)

// Host to runner.
const (
	Welcome Type = "welcome" // gen link ticket (a fresh pass)
	Fenced  Type = "fenced"  // link
	Nudge   Type = "nudge"   //
	Deliver Type = "deliver" // id round base gen session principal server ticket level subscribed sent notAfter ackWithin inbox again looks lens trace + payload
	May     Type = "may"     // id round refused; the answer to ask
	Pulled  Type = "pulled"  // n ids rounds
	Ack     Type = "ack"     // seq session next closed fenced
	ByeOK   Type = "bye-ok"  // link
	Answer  Type = "answer"  // session question + payload
	Stop    Type = "stop"    // session
	Drain   Type = "drain"   // in
	PartOK  Type = "part-ok" // frame n
	Kept    Type = "kept"    // n url header object saved refused; the answer to get, put, done and forget
)

// Part goes both ways: frame n of + payload; the runner's also box gen runner.
const Part Type = "part"

// Frame is any frame. Which fields are set is said by its Type's comment.
type Frame struct {
	V       int                `json:"v"`
	Type    Type               `json:"t"`
	Box     session.BoxID      `json:"box,omitempty"`
	Gen     session.Generation `json:"gen,omitempty"`
	Token   string             `json:"token,omitempty"`  // one-time, first hello only
	Runner  string             `json:"runner,omitempty"` // random id, drawn at start
	Link    int64              `json:"link,omitempty"`   // counts the runner's hellos on new connections
	Task    string             `json:"task,omitempty"`   // the fleet's name for the runner
	Session session.ID         `json:"session,omitempty"`

	// Questions are the client-visible ids of open questions, by session: hello
	// asks for answers that came while nobody listened.
	Questions map[session.ID][]string `json:"questions,omitempty"`

	N     int64              `json:"n,omitempty"`
	Of    int                `json:"of,omitempty"`
	Frame string             `json:"frame,omitempty"`
	IDs   []session.StreamID `json:"ids,omitempty"`
	// Rounds are those of the deliveries among IDs that were suspended before.
	Rounds  map[session.StreamID]int `json:"rounds,omitempty"`
	Tickets []string                 `json:"tickets,omitempty"`
	Ticket  string                   `json:"ticket,omitempty"`

	// Events. Next on an ack is the index of the next common event, once a batch
	// held common events.
	Seq    int64              `json:"seq,omitempty"`
	Items  []EventItem        `json:"items,omitempty"`
	Next   session.Index      `json:"next,omitempty"`
	Closed []session.StreamID `json:"closed,omitempty"`
	Fenced bool               `json:"fenced,omitempty"`

	// Deliver. Lens cuts the payload: the client's initialize params, then the
	// message. Round is how often it was suspended, Base the last index of its stream.
	ID         session.StreamID `json:"id,omitempty"`
	Round      int              `json:"round,omitempty"`
	Base       session.Index    `json:"base,omitempty"`
	Principal  string           `json:"principal,omitempty"` // a hash that tells the principals of a box apart
	Server     string           `json:"server,omitempty"`
	Level      string           `json:"level,omitempty"`
	Subscribed []string         `json:"subscribed,omitempty"`
	Sent       int64            `json:"sent,omitempty"`      // Unix milliseconds; when it was posted
	NotAfter   int64            `json:"notAfter,omitempty"`  // Unix milliseconds
	AckWithin  int64            `json:"ackWithin,omitempty"` // milliseconds
	Inbox      bool             `json:"inbox,omitempty"`
	Again      bool             `json:"again,omitempty"` // the session has had a process before
	// Looks on a deliver says that the message asks for a list only, or initializes; on a
	// bye, that the runner was given nothing else.
	Looks bool   `json:"looks,omitempty"`
	Lens  []int  `json:"lens,omitempty"`
	Trace string `json:"trace,omitempty"` // the client's request in all logs

	Question string `json:"question,omitempty"`
	In       int64  `json:"in,omitempty"` // milliseconds

	// Status. With a payload it is the result of a fresh process's initialize,
	// asked for with protocol version Detail.
	Process string `json:"process,omitempty"`
	Phase   string `json:"phase,omitempty"`
	Detail  string `json:"detail,omitempty"`
	Era     string `json:"era,omitempty"` // of the server, if it is news

	// Snapshots. What of these a Kept has says the Type it answers.
	Owner   string            `json:"owner,omitempty"`
	Size    int64             `json:"size,omitempty"` // bytes
	Object  string            `json:"object,omitempty"`
	URL     string            `json:"url,omitempty"` // a secret
	Header  map[string]string `json:"header,omitempty"`
	Saved   int64             `json:"saved,omitempty"` // Unix milliseconds
	Refused session.Code      `json:"refused,omitempty"`

	Payload []byte `json:"-"`
}

// EventItem is the events of one stream in a batch, in order. Their bytes stand
// in the frame's payload, one after the other in the order of the items.
type EventItem struct {
	Ticket string           `json:"ticket"`
	Stream session.StreamID `json:"stream,omitempty"` // "" for common
	First  session.Index    `json:"first,omitempty"`  // 0: unknown, common only
	Final  bool             `json:"final,omitempty"`  // the last event ends its stream
	Marked bool             `json:"marked,omitempty"` // Final, and an in-flight item is there to be deleted: the delivery came from the inbox, or taken was sent for it
	Lens   []int            `json:"lens"`
	Asks   *Asks            `json:"asks,omitempty"` // the last event ends not the stream but the round
}

// Asks suspends a delivery: its client is asked something, and nothing runs for it
// until there are answers. The request that is then to be sent again stands in the
// payload behind the events of the item. Marked says that an in-flight item is
// there, as for an end.
type Asks struct {
	Round     int                `json:"round"` // that begins: one more than the delivery's
	Questions []session.Question `json:"questions"`
	Within    int64              `json:"within"` // milliseconds for the answers
	Len       int                `json:"len"`    // bytes of the request
}

// Encode writes a frame, however long.
func Encode(f Frame) []byte {
	f.V = Version
	const others = 256 // bytes, about
	size := others + len(f.Ticket) + len(f.Payload)
	for _, it := range f.Items {
		size += len(it.Ticket) + others
	}
	b := f.write(make([]byte, 0, size))
	if len(f.Payload) > 0 {
		b = append(append(b, '\n'), f.Payload...)
	}
	return b
}

// VersionError is the cause of [Decode]'s error for a frame that can be read but
// is of another version of the protocol.
type VersionError struct{ V int }

// Error implements error.
func (e *VersionError) Error() string {
	return fmt.Sprintf("version %d is spoken, and this side speaks version %d", e.V, Version)
}

// Decode reads a frame. The payload aliases data. Errors are session.Invalid; for
// a frame of another version, which says nothing about those that follow, the
// cause is a [VersionError].
func Decode(data []byte) (Frame, error) {
	head, payload, _ := bytes.Cut(data, []byte{'\n'})
	var f Frame
	if err := f.read(head); err != nil {
		return Frame{}, session.Errorf(session.Invalid, "relay frame of %d bytes has no readable header", len(data)).Because(err)
	}
	switch {
	case f.V == 0 || f.Type == "":
		return Frame{}, session.Errorf(session.Invalid, "a message of %d bytes is JSON but no relay frame", len(data))
	case f.V != Version:
		return Frame{}, session.Errorf(session.Invalid, "relay frame of type %q is not understood", f.Type).Because(&VersionError{f.V})
	}
	f.Payload = payload
	return f, nil
}

// Cut splits an encoded frame that is longer than MaxFrame into part frames; a
// shorter one comes back alone. box is set by the runner, so that the host knows
// where to keep them.
func Cut(encoded []byte, box session.BoxID, name string) [][]byte {
	if len(encoded) <= MaxFrame {
		return [][]byte{encoded}
	}
	return CutAs(encoded, Frame{Box: box, Frame: name})
}

// CutAs cuts a frame of any length into parts that have a header in common.
func CutAs(encoded []byte, head Frame) [][]byte {
	var pieces [][]byte
	for rest := encoded; len(rest) > 0; {
		n := min(MaxPiece, len(rest))
		for n < len(rest) && n > 0 && !utf8.RuneStart(rest[n]) {
			n--
		}
		if n == 0 { // not UTF-8 at all; the writer should not have let it through
			n = min(MaxPiece, len(rest))
		}
		pieces = append(pieces, rest[:n])
		rest = rest[n:]
	}
	head.Type, head.Of = Part, len(pieces)
	for i, p := range pieces {
		head.N, head.Payload = int64(i), p
		pieces[i] = Encode(head)
	}
	return pieces
}

// DrainFrame is the frame that asks a runner to connect anew within a time, which
// it does at a moment it draws, so that a host that is about to be replaced does
// not see all of them at once. It is posted to the connection of a box record; no
// answer comes but the hello on the next connection.
func DrainFrame(within time.Duration) []byte {
	return Encode(Frame{Type: Drain, In: within.Milliseconds()})
}

// Split splits a payload by lengths, which must add up to all of it.
func Split(payload []byte, lens []int) ([][]byte, bool) {
	out := make([][]byte, 0, len(lens))
	for _, n := range lens {
		if n < 0 || n > len(payload) {
			return nil, false
		}
		out = append(out, payload[:n:n])
		payload = payload[n:]
	}
	return out, len(payload) == 0
}

// Assembler joins the parts that a runner receives on one connection. It drops late
// copies of parts whose frame is complete. The zero value is ready. It is not safe for
// concurrent use.
type Assembler struct {
	frames map[string][][]byte
	size   int
	joined map[string]bool // names of complete frames, at most maxJoinedKept
}

// maxOpenFrames bounds what a host that never completes a frame can make a
// runner hold; with maxJoined it bounds the bytes too.
const (
	maxOpenFrames = 64
	maxJoinedKept = 1000
)

// Open says how many frames are begun and not complete, and how many bytes they hold.
func (a *Assembler) Open() (frames, size int) { return len(a.frames), a.size }

// Add takes a part and returns the whole frame when it was the last missing one.
// A part that makes no sense, or too many bytes, is session.Invalid.
func (a *Assembler) Add(f Frame) (whole []byte, done bool, err error) {
	if f.Of < 1 || f.Of > MaxJoined/1024 || f.N < 0 || f.N >= int64(f.Of) {
		return nil, false, session.Errorf(session.Invalid, "part %d of %d of a relay frame", f.N, f.Of)
	}
	if a.joined[f.Frame] {
		return nil, false, nil
	}
	if a.frames == nil {
		a.frames, a.joined = map[string][][]byte{}, map[string]bool{}
	}
	parts, ok := a.frames[f.Frame]
	if !ok {
		if len(a.frames) == maxOpenFrames {
			return nil, false, session.Errorf(session.Invalid, "more than %d relay frames begun and not completed", maxOpenFrames)
		}
		parts = make([][]byte, f.Of)
		a.frames[f.Frame] = parts
	}
	if len(parts) != f.Of {
		return nil, false, session.Errorf(session.Invalid, "a part of %d in a relay frame of %d", f.Of, len(parts))
	}
	if parts[f.N] == nil {
		if a.size += len(f.Payload); a.size > 4*MaxJoined {
			return nil, false, session.Errorf(session.Invalid, "relay frames begun and not completed hold over %d bytes", 4*MaxJoined)
		}
		parts[f.N] = bytes.Clone(f.Payload)
	}
	for _, p := range parts {
		if p == nil {
			return nil, false, nil
		}
	}
	delete(a.frames, f.Frame)
	if len(a.joined) == maxJoinedKept {
		clear(a.joined)
	}
	a.joined[f.Frame] = true
	whole = bytes.Join(parts, nil)
	a.size -= len(whole)
	return whole, true, nil
}
