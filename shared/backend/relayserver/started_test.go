package relayserver_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// The first fingerprint of a kind is kept. Another one has the box tell its client, over the
// connection that the frame came from.
func TestBoxTellsTheClientOfAProcessThatListsOtherwise(t *testing.T) {
	s := newSiege(t)
	ticket := s.ticket("m1", "d1", hostileBox, hostileGen)
	for i, lists := range []string{`{"tools/list":"a"}`, `{"tools/list":"a"}`, `{"tools/list":"b"}`, `{"tools/list":"b"}`} {
		s.posts = nil
		f := frametest.Frame{Type: frame.TypeStatus, Box: hostileBox, Gen: hostileGen, Session: "m1", Ticket: ticket, Lists: "kind", Payload: []byte(lists)}
		if _, err := s.handle(frametest.Encode(f)); err != nil {
			t.Fatal(err)
		}
		if i != 2 {
			if len(s.posts) != 0 {
				t.Errorf("start %d: posts are %v", i, s.posts)
			}
			continue
		}
		if len(s.posts) != 1 {
			t.Fatalf("start %d: posts are %v", i, s.posts)
		}
		conn, data, _ := strings.Cut(s.posts[0], " ")
		told, err := frametest.Decode([]byte(data))
		if err != nil || conn != "conn-x" || told.Type != frame.TypeDeliver || told.Session != "m1" || !told.Moved || !told.Looks || told.AckWithin != 0 ||
			!strings.HasSuffix(string(told.Payload), `{"jsonrpc":"2.0","method":"notifications/initialized"}`) {
			t.Errorf("the box got %s on %s, %v", data, conn, err)
		}
	}
}

// A hostile box may name any kind. It reaches no other part of its record, and no other
// record.
func TestFingerprintOfAHostileBoxIsBounded(t *testing.T) {
	s := newSiege(t)
	ticket := s.ticket("m1", "d1", hostileBox, hostileGen)
	for _, f := range []frametest.Frame{
		{Lists: strings.Repeat("x", 201), Payload: []byte(`{}`)},
		{Lists: "x", Payload: []byte(`"` + strings.Repeat("x", 5<<10) + `"`)},
	} {
		f.Type, f.Box, f.Gen, f.Session, f.Ticket = frame.TypeStatus, hostileBox, hostileGen, "m1", ticket
		if _, err := s.handle(frametest.Encode(f)); !errors.Is(err, storage.Invalid) {
			t.Errorf("%d bytes of a kind with %d of a fingerprint: %v", len(f.Lists), len(f.Payload), err)
		}
	}
	f := frametest.Frame{
		Type: frame.TypeStatus, Box: hostileBox, Gen: hostileGen, Session: "m1", Ticket: ticket, Lists: "2025-11-25", Payload: []byte(`{"evil":1}`),
	}
	if _, err := s.handle(frametest.Encode(f)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.memory.Handshake(t.Context(), "digest", "2025-11-25"); !errors.Is(err, storage.NotFound) {
		t.Errorf("the record says what the box wants: %v", err)
	}
}

// A request may wait until the box is woken with another program than the one that the host
// had compared its session with.
func TestRequestThatAnotherProgramGetsSaysSo(t *testing.T) {
	for code, moved := range map[string]bool{"": false, "old": false, "new": true} {
		t.Run(code, func(t *testing.T) {
			s := newSiege(t)
			b, err := s.memory.Box(t.Context(), hostileBox)
			commontest.OK(t, err)
			b.Code = code
			commontest.OK(t, s.memory.SaveBox(t.Context(), b))
			waits, _, err := s.memory.Load(t.Context(), "m1", "")
			commontest.OK(t, err)
			waits.Digest = "old"
			commontest.OK(t, s.memory.Save(t.Context(), waits))
			if _, err := s.handle(frametest.Encode(frametest.Frame{Type: frame.TypePull, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", N: 1})); err != nil {
				t.Fatal(err)
			}
			if len(s.posts) != 1 {
				t.Fatalf("posts are %v", s.posts)
			}
			_, data, _ := strings.Cut(s.posts[0], " ")
			if f, err := frametest.Decode([]byte(data)); err != nil || f.Type != frame.TypeDeliver || f.Moved != moved {
				t.Errorf("code %q: %s, %v", code, data, err)
			}
		})
	}
}
