package host_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/mcp/host"
	"github.com/dormouse-mcp/dormouse/shared/store/sessiontest"
)

func TestErrorsAreToldApart(t *testing.T) {
	_, store, id := listening(t)
	faulty := sessiontest.NewFaulty(store, 1, sessiontest.Faults{})
	h := host.New(faulty, nobody{}, host.Limits{})
	deaf := withState(t, store, func(s *session.Session) { s.Pushes = false })
	ended := func(q session.Quit) session.ID {
		return withState(t, store, func(s *session.Session) { s.State, s.Quit = session.Ended, q })
	}
	expired := withState(t, store, func(s *session.Session) { s.Expires = time.Now().Add(-time.Second) })
	client, service, noInit, canceled := ended(session.QuitClient), ended(session.QuitService), ended(session.QuitNoInit), ended(session.QuitCanceled)
	listen := func(id session.ID, last string) func() error {
		return func() error { _, err := h.Resume(t.Context(), someone, id, last); return err }
	}
	for _, c := range []struct {
		name string
		call func() error
		code session.Code
		why  error  // an error that errors.Is must find, besides the code
		part string // of an event id
	}{
		{"no session", listen(session.NewID(), "1"), session.NotFound, nil, ""},
		{"ended by its client", listen(client, "1"), session.NotFound, session.QuitClient, ""},
		{"ended by an operator", listen(service, "1"), session.NotFound, session.QuitService, ""},
		{"initialize failed", listen(noInit, "1"), session.NotFound, session.QuitNoInit, ""},
		{"initialize was cancelled", listen(canceled, "1"), session.NotFound, session.QuitCanceled, ""},
		{"expired", listen(expired, "1"), session.NotFound, session.QuitExpired, ""},
		{"somebody else's", func() error {
			other := someone
			other.Principal = "q"
			_, err := h.Listen(t.Context(), other, id, "")
			return err
		}, session.NotFound, nil, ""},
		{"nothing to listen to", listen(deaf, "1"), session.Closed, nil, ""},
		{"an id that is none", listen(id, ""), session.Invalid, nil, "length"},
		{"an id that is too long", listen(id, strings.Repeat("1", 101)), session.Invalid, nil, "length"},
		{"an index that is none", listen(id, "x/r"), session.Invalid, nil, "index"},
		{"a nonce that is none", listen(id, "1.ü/r"), session.Invalid, nil, "nonce"},
		{"a stream that is none", listen(id, "1/R"), session.Invalid, nil, "stream"},
		{"initialize again", func() error {
			_, err := accept(t, h, id, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
			return err
		}, session.Invalid, nil, ""},
		{"no store", func() error {
			faulty.Set("", sessiontest.Faults{Lost: 1})
			defer faulty.Set("", sessiontest.Faults{})
			_, err := h.Listen(t.Context(), someone, id, "")
			return err
		}, session.Unavailable, sessiontest.Lost, ""},
	} {
		err := c.call()
		if session.CodeOf(err) != c.code || !errors.Is(err, c.code) || c.why != nil && !errors.Is(err, c.why) {
			t.Errorf("%s: %v, code %q; want code %q because of %v", c.name, err, session.CodeOf(err), c.code, c.why)
		}
		var eid *session.EventIDError
		if errors.As(err, &eid) != (c.part != "") || eid != nil && eid.Part != c.part {
			t.Errorf("%s: %v; want the part %q of an event id", c.name, err, c.part)
		}
		var told *session.Error
		if errors.As(err, &told) && c.code == session.NotFound && told.Message != "there is no such session; send initialize to open one" {
			t.Errorf("%s: the client is told %q", c.name, told.Message)
		}
	}
}

// withState stores another session, after f has changed its fields.
func withState(t *testing.T, store session.Store, f func(*session.Session)) session.ID {
	t.Helper()
	now := time.Now()
	s := session.Session{
		ID: session.NewID(), Server: "s", Tenant: "t", Principal: "p", Transport: session.HTTP, State: session.Ready,
		Pushes: true, Created: now, Used: now, Expires: now.Add(time.Hour),
	}
	f(&s)
	if err := store.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return s.ID
}

func TestAnOperatorEndsASession(t *testing.T) {
	h, store, id := listening(t)
	for range 2 {
		if err := h.Terminate(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if s := record(t, store, id); s.State != session.Ended || s.Quit != session.QuitService {
		t.Errorf("state %q, quit %q", s.State, s.Quit)
	}
	if err := h.Terminate(t.Context(), session.NewID()); session.CodeOf(err) != session.NotFound {
		t.Errorf("a session that is not there: %v", err)
	}
}

func TestAnInitializeThatFailsSaysWhyThereIsNoSession(t *testing.T) {
	for raw, want := range map[string]session.Quit{
		`{"jsonrpc":"2.0","id":0,"error":{"code":-32603,"message":"no such module"}}`: session.QuitNoInit,
		`{"jsonrpc":"2.0","id":0,"error":{"code":-32800,"message":"cancelled"}}`:      session.QuitCanceled,
	} {
		_, store, _ := listening(t)
		id := withState(t, store, func(s *session.Session) { s.State = session.Created })
		err := host.Outlet{Store: store}.Append(t.Context(), session.Address{Session: id, Stream: "r", Init: true}, session.Batch{
			Session: id, Stream: "r", First: 1, Final: true, Events: [][]byte{[]byte(raw)}, Expires: time.Now().Add(time.Hour),
		})
		if got := record(t, store, id).Quit; err != nil || got != want {
			t.Errorf("%s: quit %q, %v; want %q", raw, got, err, want)
		}
	}
}
