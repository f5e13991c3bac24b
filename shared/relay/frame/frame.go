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

// Type of a frame, as its header names it.
type Type string

// Types that a runner sends.
const (
	TypeHello  Type = "hello"
	TypePull   Type = "pull"
	TypeTaken  Type = "taken"
	TypeAsk    Type = "ask"
	TypeEvents Type = "events"
	TypeStatus Type = "status"
	TypeBye    Type = "bye"
	TypeWhole  Type = "whole"
)

// The types of a [Snapshot].
const (
	Get    Type = "get"    // where is the newest snapshot?
	Put    Type = "put"    // where may another go, of Size bytes?
	Done   Type = "done"   // Object is there
	Forget Type = "forget" // it is of no use any more
)

// Types that the host sends.
const (
	TypeWelcome Type = "welcome"
	TypeFenced  Type = "fenced"
	TypeNudge   Type = "nudge"
	TypeDeliver Type = "deliver"
	TypeMay     Type = "may"
	TypePulled  Type = "pulled"
	TypeAck     Type = "ack"
	TypeByeOK   Type = "bye-ok"
	TypeAnswer  Type = "answer"
	TypeStop    Type = "stop"
	TypeDrain   Type = "drain"
	TypePartOK  Type = "part-ok"
	TypeKept    Type = "kept"
)

// TypePart goes both ways.
const TypePart Type = "part"

// VersionError is the cause of [Decode]'s error for a frame that can be read but
// is of another version of the protocol.
type VersionError struct{ V int }

// Error implements error.
func (e *VersionError) Error() string {
	return fmt.Sprintf("version %d is spoken, and this side speaks version %d", e.V, Version)
}

// Cut splits an encoded frame that is longer than MaxFrame into part frames; a
// shorter one comes back alone. box is set by the runner, so that the host knows
// where to keep them.
func Cut(encoded []byte, box session.BoxID, name string) [][]byte {
	if len(encoded) <= MaxFrame {
		return [][]byte{encoded}
	}
	return CutAs(encoded, Part{Sender: Sender{Box: box}, Frame: name})
}

// CutAs cuts a frame of any length into parts that have a header in common.
func CutAs(encoded []byte, head Part) [][]byte {
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
	head.Of = len(pieces)
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
	return Encode(Drain{In: within.Milliseconds()})
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
func (a *Assembler) Add(f Part) (whole []byte, done bool, err error) {
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
