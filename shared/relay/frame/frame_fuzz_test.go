package frame_test

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Decode and Encode together give a frame that reads the same.
func FuzzDecode(f *testing.F) {
	for _, one := range []frame.Frame{
		frame.Nudge{},
		frame.Hello{Sender: frame.Sender{Box: "t/s", Gen: 1, Runner: "r"}, Token: "<&>", Link: 1, Questions: map[session.ID][]string{"s": {"q"}}},
		frame.Events{Seq: 2, Session: "s", Items: []frame.EventItem{{Ticket: "t", First: 1, Lens: []int{1, 2}}}, Payload: []byte("a\nb")},
		frame.Part{Frame: "f", N: 1, Of: 2, Payload: []byte("\u2028\n")},
		frame.Snapshot{Op: frame.Put, Owner: "s", Size: 7},
	} {
		f.Add(frame.Encode(one))
	}
	f.Add([]byte(`{"v":1,"t":"x","lens":null,"items":[{}],"unknown":{"a":1}}` + "\n"))
	f.Add([]byte(`{"v":2,"t":"x"}`))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		one, err := frame.Decode(data)
		if err != nil {
			if session.CodeOf(err) != session.Invalid {
				t.Errorf("code of %v", err)
			}
			return
		}
		again, err := frame.Decode(frame.Encode(one))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(one, again, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	})
}

// A frame of any text is cut into parts that are text too and that the gateway accepts.
// They join byte for byte, in any order, even if any part comes twice.
func FuzzCutAssemble(f *testing.F) {
	f.Add("x", 3, uint(0))
	f.Add("é", 60_001, uint(1))
	f.Add("a€", 90_000, uint(7))
	f.Add("😀", 80_000, uint(3))
	f.Add("x😀é", 100_003, uint(5))
	f.Add("\n\x00", 200_000, uint(11))
	f.Fuzz(func(t *testing.T, text string, times int, start uint) {
		if times < 0 || len(text) == 0 || times > 1_000_000/len(text) || !utf8.ValidString(text) {
			return
		}
		encoded := frame.Encode(frame.Events{Payload: []byte(strings.Repeat(text, times))})
		pieces := frame.Cut(encoded, "tenant/server", "name")
		if len(pieces) == 1 {
			if !bytes.Equal(pieces[0], encoded) {
				t.Error("a frame that is short enough was changed")
			}
			return
		}
		var a frame.Assembler
		for i := range pieces {
			piece := pieces[(uint(i)+start)%uint(len(pieces))]
			if len(piece) > frame.MaxFrame || !utf8.Valid(piece) {
				t.Fatalf("piece %d has %d bytes, UTF-8 %t", i, len(piece), utf8.Valid(piece))
			}
			read, err := frame.Decode(piece)
			part, ok := read.(frame.Part)
			if err != nil || !ok || part.Box != "tenant/server" || part.Of != len(pieces) {
				t.Fatalf("piece %d is %+v: %v", i, part, err)
			}
			if i < len(pieces)-1 {
				if _, done, err := a.Add(part); done || err != nil {
					t.Fatalf("done after %d of %d parts, %v", i+1, len(pieces), err)
				}
			}
			whole, done, err := a.Add(part)
			if err != nil || done != (i == len(pieces)-1) {
				t.Fatalf("done %t after %d of %d parts, %v", done, i+1, len(pieces), err)
			}
			if done && !bytes.Equal(whole, encoded) {
				t.Error("the joined frame is another")
			}
		}
	})
}
