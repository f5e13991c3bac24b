package relay_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// benchAddress returns the address of a tools/call.
func benchAddress() storage.Address {
	return storage.Address{
		Session: storage.NewID(), Stream: storage.NewStreamID(), Requests: []json.RawMessage{[]byte("17")},
		Digest: "d41d8cd98f00b204e9800998ecf8427e", Box: "local/echo", Again: true,
	}
}

// BenchmarkTicket measures two steps: sealing a ticket, once for each delivery, and
// opening it, once for each batch of its events.
func BenchmarkTicket(b *testing.B) {
	s, a := newSealer(b), benchAddress()
	b.Run("seal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Seal(a, 3)
		}
	})
	sealed := s.Seal(a, 3)
	b.Run("open", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Open(sealed); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// benchFrames returns the two frames of a call, and a frame of the greatest length.
func benchFrames(b *testing.B) map[string]frame.Frame {
	a := benchAddress()
	params := []byte(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}`)
	call := []byte(`{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"echo","arguments":{"message":"hello"}}}`)
	result := []byte(`{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":"Echo: hello"}]}}`)
	large := bytes.Repeat([]byte("x"), frame.MaxPiece)
	ticket := newSealer(b).Seal(a, 3)
	events := func(event []byte) frame.Frame {
		return frame.Events{
			Sender: frame.Sender{Box: a.Box, Gen: 3}, Seq: 42, Session: a.Session,
			Items:   []frame.EventItem{{Ticket: ticket, Stream: a.Stream, First: 1, Final: true, Lens: []int{len(event)}}},
			Payload: event,
		}
	}
	return map[string]frame.Frame{
		"deliver": frame.Deliver{
			ID: a.Stream, Gen: 3, Session: a.Session, Ticket: ticket, AckWithin: 1000,
			Lens: []int{len(params), len(call)}, Payload: append(params, call...),
		},
		"events":        events(result),
		"events 100 KB": events(large),
	}
}

func BenchmarkEncode(b *testing.B) {
	for name, f := range benchFrames(b) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(frame.Encode(f))))
			b.ReportAllocs()
			for b.Loop() {
				frame.Encode(f)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for name, f := range benchFrames(b) {
		encoded := frame.Encode(f)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(encoded)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := frame.Decode(encoded); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
