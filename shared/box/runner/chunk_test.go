package runner_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func longText(text string) string {
	return `{"text":"` + strings.Repeat(text, 300_000/len(text)) + `"}`
}

func longRequest(id storage.StreamID, text string) [][]byte {
	f, raw := request(id, fromInbox), longText(text)
	f.Lens, f.Payload = []int{2, len(raw)}, []byte("{}"+raw)
	return frame.Cut(frametest.Encode(f), "", "frame-"+string(id))
}

func TestPartsOfTwoFramesComeInAnyOrderAndTwice(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		one, two := longRequest("d1", "é"), longRequest("d2", "€")
		for i := len(one) - 1; i >= 0; i-- {
			b.conn.in <- one[i]
			b.conn.in <- two[len(two)-1-i]
			b.conn.in <- one[i]
		}
		for _, part := range two {
			b.conn.in <- part
		}
		got := b.box.deliveries()
		if len(got) != 2 {
			t.Fatalf("%d deliveries", len(got))
		}
		text := map[storage.StreamID]string{"d1": "é", "d2": "€"}
		for _, d := range got {
			if string(d.Init) != "{}" || string(d.Raw) != longText(text[d.ID]) {
				t.Errorf("delivery %s has %d bytes, and not those that were sent", d.ID, len(d.Raw))
			}
		}
	})
}

func TestPartsOfAnIncompleteFrameAreDroppedWithTheConnection(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		parts := longRequest("d1", "😀")
		for _, part := range parts[1:] {
			b.conn.in <- part
		}
		b.conn.cut()
		b.welcome(b.dialed(), benchGen)
		b.conn.in <- parts[0]
		equal(t, "executed", b.box.told(), nil)
		for _, part := range parts {
			b.conn.in <- part
		}
		equal(t, "executed", b.box.told(), []string{"deliver d1"})
	})
}

func TestMoreLongFramesThanPlacesWaitForOne(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		const sessions = frame.MaxTransfers + 3
		for n := range sessions {
			b.say(storage.ID("s"+string(rune('A'+n))), storage.Standalone, strings.Repeat("x", 130_000), false)
		}
		places, done := map[string]bool{}, 0
		for done < sessions {
			f, ok := b.received()
			if !ok {
				t.Fatalf("nothing more came after %d of %d", done, sessions)
			}
			switch f.Type {
			case frame.TypePart:
				place, _, _ := strings.Cut(f.Frame.Frame, ".")
				places[place] = true
				if f.Frame.Runner == "" || f.Gen != benchGen {
					t.Errorf("part of generation %d, runner %q", f.Gen, f.Frame.Runner)
				}
				b.send(frametest.Frame{Type: frame.TypePartOK, Frame: f.Frame.Frame, N: f.N})
			case frame.TypeWhole:
				done++
				for n := range done {
					b.ack(frametest.Frame{Seq: 1, Session: storage.ID("s" + string(rune('A'+n)))})
				}
			default:
				t.Fatalf("%s came", f.Type)
			}
		}
		commontest.Equal(t, frame.MaxTransfers, len(places))
		b.pass(time.Minute)
	})
}
