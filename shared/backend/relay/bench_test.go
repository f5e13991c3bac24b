package relay_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// These benchmarks measure steps of a call: a ticket is sealed for each delivery, and opened
// for each batch of its events, which is a frame.

func measure(b *testing.B, name string, bytes int, step func()) {
	b.Run(name, func(b *testing.B) {
		b.SetBytes(int64(bytes))
		b.ReportAllocs()
		for b.Loop() {
			step()
		}
	})
}

func benchAddress() storage.Address {
	return storage.Address{
		Session: storage.NewID(), Stream: storage.NewStreamID(), Requests: []json.RawMessage{[]byte("17")},
		Digest: "d41d8cd98f00b204e9800998ecf8427e", Box: "local/echo", Again: true,
	}
}

func BenchmarkTicket(b *testing.B) {
	s, a := newSealer(b), benchAddress()
	sealed := s.Seal(a, 3)
	measure(b, "seal", 0, func() { s.Seal(a, 3) })
	measure(b, "open", 0, func() { _, _ = s.Open(sealed) })
}

func BenchmarkFrame(b *testing.B) {
	a := benchAddress()
	for name, event := range map[string][]byte{
		"events":        []byte(`{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":"Echo: hello"}]}}`),
		"events 100 KB": bytes.Repeat([]byte("x"), frame.MaxPiece),
	} {
		f := frame.Events{
			Sender: frame.Sender{Box: a.Box, Gen: 3}, Seq: 42, Session: a.Session, Payload: event,
			Items: []frame.EventItem{{Ticket: newSealer(b).Seal(a, 3), Stream: a.Stream, First: 1, Final: true, Lens: []int{len(event)}}},
		}
		encoded := frame.Encode(f)
		measure(b, "encode/"+name, len(encoded), func() { frame.Encode(f) })
		measure(b, "decode/"+name, len(encoded), func() { _, _ = frame.Decode(encoded) })
	}
}
