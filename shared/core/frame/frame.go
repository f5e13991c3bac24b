package frame

import (
	"bytes"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Version is the version of the frame layout. Every header has it.
const Version = 1

// Limits of the relay, in bytes. MaxFrame limits one WebSocket message, MaxPiece the payload of a
// [Part], and MaxWSFrame a WebSocket frame with its header. MaxMessage limits a client's message or an
// event, and MaxJoined a frame joined from parts. API Gateway's own limits are 131,072 for a message
// and 32,768 for a WebSocket frame.
const (
	MaxFrame   = 120_000
	MaxPiece   = 100_000
	MaxWSFrame = 32_768
	MaxMessage = 16 << 20
	MaxJoined  = MaxMessage + 1<<20
)

// Limits of a frame's header: its bytes, and the JSON values in it. Decoding may take a hundred bytes
// of memory for each value.
const (
	maxHeader = 4 << 20
	maxValues = 200_000
)

// Type is the type of a frame, as its header names it.
type Type string

// Types that a runner sends.
const (
	TypeHello  Type = "hello"
	TypePull   Type = "pull"
	TypeTaken  Type = "taken"
	TypeAsk    Type = "ask"
	TypeReturn Type = "return"
	TypeEvents Type = "events"
	TypeStatus Type = "status"
	TypeBye    Type = "bye"
	TypeWhole  Type = "whole"
)

// The types of a [Snapshot] frame, which a runner sends.
const (
	Get    Type = "get"    // where is the newest snapshot?
	Put    Type = "put"    // where may a new one, of Size bytes, be uploaded?
	Done   Type = "done"   // the upload of Object is complete
	Forget Type = "forget" // the snapshot may be deleted
)

// Types that a runner receives.
const (
	TypeWelcome Type = "welcome"
	TypeFenced  Type = "fenced"
	TypeNudge   Type = "nudge"
	TypeLook    Type = "look"
	TypeDeliver Type = "deliver"
	TypeMay     Type = "may"
	TypePulled  Type = "pulled"
	TypeAck     Type = "ack"
	TypeByeOK   Type = "bye-ok"
	TypeAnswer  Type = "answer"
	TypeStop    Type = "stop"
	TypeHalt    Type = "halt"
	TypeYield   Type = "yield"
	TypeDrain   Type = "drain"
	TypePartOK  Type = "part-ok"
	TypeKept    Type = "kept"
)

// TypePart is sent by both ends.
const TypePart Type = "part"

// Cut splits an encoded frame that is longer than MaxFrame into [Part] frames. The argument name
// becomes their field Frame. Cut returns a shorter frame alone and unchanged. The argument box is the
// sender's; only runners set it.
func Cut(encoded []byte, box storage.BoxID, name string) [][]byte {
	if len(encoded) <= MaxFrame {
		return [][]byte{encoded}
	}
	pieces := Pieces(encoded)
	head := Part{Sender: Sender{Box: box}, Frame: name, Of: len(pieces)}
	for i, p := range pieces {
		head.N, head.Payload = int64(i), p
		pieces[i] = Encode(head)
	}
	return pieces
}

// Pieces cuts the slices of frame, taken as one text, into the payloads of [Part] frames, of at most
// MaxPiece bytes each. It cuts between characters. A piece aliases frame unless its bytes come from
// several slices.
func Pieces(frame ...[]byte) (pieces [][]byte) {
	var joined []byte // the end of earlier slices, which begins the next piece
	for _, rest := range frame {
		for len(rest) > 0 {
			n := min(MaxPiece-len(joined), len(rest))
			for n < len(rest) && n > 0 && !utf8.RuneStart(rest[n]) {
				n--
			}
			if n == 0 && len(joined) == 0 { // the bytes are not UTF-8; the writer should have refused them
				n = min(MaxPiece, len(rest))
			}
			piece := rest[:n:n]
			if len(joined) > 0 {
				piece = append(joined, piece...)
			}
			if rest = rest[n:]; len(rest) == 0 {
				joined = piece
				break
			}
			pieces, joined = append(pieces, piece), nil
		}
	}
	if len(joined) > 0 {
		pieces = append(pieces, joined)
	}
	return pieces
}

// Split splits a payload by lengths in bytes. It returns false unless they add up to
// all of the payload. The pieces alias payload.
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

// Assembler joins the parts that a runner receives on one connection. It drops late copies of parts
// whose frame is complete. The zero value is ready. An Assembler is not safe for concurrent use.
type Assembler struct {
	frames map[string][][]byte
	size   int
	joined map[string]bool // names of complete frames, at most maxJoinedKept
}

// maxOpenFrames limits how many incomplete frames a runner holds, in case the sender never completes
// them. Their bytes are limited to 4*MaxJoined.
const (
	maxOpenFrames = 64
	maxJoinedKept = 1000
)

// Add takes a part, and copies its payload. If the part completes its frame, Add returns the
// whole frame and true. Errors: Invalid for an inconsistent part, or if there are too many
// incomplete frames or bytes in them.
func (a *Assembler) Add(f Part) (whole []byte, done bool, err error) {
	if f.Of < 1 || f.Of > MaxJoined/1024 || f.N < 0 || f.N >= int64(f.Of) {
		return nil, false, storage.Errorf(storage.Invalid, "part %d of %d of a relay frame", f.N, f.Of)
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
			return nil, false, storage.Errorf(storage.Invalid, "more than %d relay frames are incomplete; complete one before the next begins", maxOpenFrames)
		}
		parts = make([][]byte, f.Of)
		a.frames[f.Frame] = parts
	}
	if len(parts) != f.Of {
		return nil, false, storage.Errorf(storage.Invalid, "a part of %d in a relay frame of %d", f.Of, len(parts))
	}
	if parts[f.N] == nil {
		if a.size += len(f.Payload); a.size > 4*MaxJoined {
			return nil, false, storage.Errorf(storage.Invalid, "the incomplete relay frames hold more than %d bytes; complete one before the next begins", 4*MaxJoined)
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
