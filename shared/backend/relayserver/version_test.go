package relayserver_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestHostRefusesAnotherVersionAndTakesTheNextFrame(t *testing.T) {
	s := newSiege(t)
	hello := frametest.Frame{Type: frame.TypeHello, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 2}
	for _, v := range []string{"2", "-1", "99999"} {
		s.gainsNothing("version "+v, frametest.EncodeAs(v, hello))
		var version *frame.VersionError
		if _, err := s.handle(frametest.EncodeAs(v, hello)); storage.CodeOf(err) != storage.Invalid || !errors.As(err, &version) {
			t.Errorf("version %s: %v", v, err)
		}
	}
	if f, err := s.handle(frametest.Encode(hello)); err != nil || f.Type != frame.TypeWelcome {
		t.Errorf("answered with %+v, %v", f, err)
	}
}

func TestMessageWithoutAVersionIsNoFrameOfAnother(t *testing.T) {
	for _, data := range []string{`{"message":"Internal server error"}`, `{"v":1}`, `{}`, `{"t":"hello"}`} {
		var version *frame.VersionError
		if _, err := frametest.Decode([]byte(data)); storage.CodeOf(err) != storage.Invalid || errors.As(err, &version) {
			t.Errorf("%s: %v", data, err)
		}
	}
}

func TestHostPassesOverFieldsItDoesNotKnow(t *testing.T) {
	plain, extended := newSiege(t), newSiege(t)
	script := func(s *siege) []frametest.Frame {
		events := s.events("m1", "d1", 1, s.ticket("m1", "d1", hostileBox, hostileGen))
		return []frametest.Frame{
			{Type: frame.TypeHello, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 2},
			{Type: frame.TypePull, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", N: 1},
			{Type: frame.TypeTaken, Box: hostileBox, Gen: hostileGen, Tickets: []string{events.Items[0].Ticket}},
			events,
			{Type: frame.TypePart, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Frame: "0.a", Of: 1, Payload: frametest.EncodeWithMore(events)},
			{Type: frame.TypeWhole, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Frame: "0.a", Of: 1},
			{Type: "new", Box: hostileBox},
			{Type: frame.TypeBye, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 2},
		}
	}
	frames := script(plain)
	for i, f := range script(extended) {
		want, err := plain.handle(frametest.Encode(frames[i]))
		if err != nil {
			t.Fatalf("%s: %v", f.Type, err)
		}
		got, err := extended.handle(frametest.EncodeWithMore(f))
		if err != nil {
			t.Errorf("%s: %v", f.Type, err)
		}
		if f.Type == frame.TypeHello && want.Ticket != "" && got.Ticket != "" {
			want.Ticket, got.Ticket = "", "" // each pass has a nonce of its own
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("answer to %s:\n%s", f.Type, diff)
		}
	}
	if b, err := extended.memory.Box(t.Context(), hostileBox); err != nil || b.State != storage.Asleep {
		t.Errorf("the box is %q: %v", b.State, err)
	}
}
