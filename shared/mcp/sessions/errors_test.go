package sessions_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestErrorsAreToldApart(t *testing.T) {
	_, store, id := listening(t)
	faulty := storagetest.NewFaulty(store, 1, storagetest.Faults{})
	h := sessions.New(faulty, nobody{}, sessions.Limits{})
	deaf := withState(t, store, func(s *storage.Session) { s.Pushes = false })
	ended := func(q storage.Quit) storage.ID {
		return withState(t, store, func(s *storage.Session) { s.State, s.Quit = storage.Ended, q })
	}
	expired := withState(t, store, func(s *storage.Session) { s.Expires = time.Now().Add(-time.Second) })
	client, service, noInit, canceled := ended(storage.QuitClient), ended(storage.QuitService), ended(storage.QuitNoInit), ended(storage.QuitCanceled)
	listen := func(id storage.ID, last string) func() error {
		return func() error { _, err := h.Resume(t.Context(), someone, id, last); return err }
	}
	for _, c := range []struct {
		name string
		call func() error
		code storage.Code
		why  error  // an error that errors.Is must find, besides the code
		part string // of an event id
	}{
		{"no session", listen(storage.NewID(), "1"), storage.NotFound, nil, ""},
		{"ended by its client", listen(client, "1"), storage.NotFound, storage.QuitClient, ""},
		{"ended by an operator", listen(service, "1"), storage.NotFound, storage.QuitService, ""},
		{"initialize failed", listen(noInit, "1"), storage.NotFound, storage.QuitNoInit, ""},
		{"initialize was cancelled", listen(canceled, "1"), storage.NotFound, storage.QuitCanceled, ""},
		{"expired", listen(expired, "1"), storage.NotFound, storage.QuitExpired, ""},
		{"somebody else's", func() error {
			other := someone
			other.Principal = "q"
			_, err := h.Listen(t.Context(), other, id, "")
			return err
		}, storage.NotFound, nil, ""},
		{"nothing to listen to", listen(deaf, "1"), storage.Closed, nil, ""},
		{"an id that is none", listen(id, ""), storage.Invalid, nil, "length"},
		{"an id that is too long", listen(id, strings.Repeat("1", 101)), storage.Invalid, nil, "length"},
		{"an index that is none", listen(id, "x/r"), storage.Invalid, nil, "index"},
		{"a nonce that is none", listen(id, "1.ü/r"), storage.Invalid, nil, "nonce"},
		{"a stream that is none", listen(id, "1/R"), storage.Invalid, nil, "stream"},
		{"initialize again", func() error {
			_, err := accept(t, h, id, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
			return err
		}, storage.Invalid, nil, ""},
		{"no store", func() error {
			faulty.Set("", storagetest.Faults{Lost: 1})
			defer faulty.Set("", storagetest.Faults{})
			_, err := h.Listen(t.Context(), someone, id, "")
			return err
		}, storage.Unavailable, storagetest.Lost, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.call()
			if storage.CodeOf(err) != c.code || !errors.Is(err, c.code) || c.why != nil && !errors.Is(err, c.why) {
				t.Errorf("%s: %v, code %q; want code %q because of %v", c.name, err, storage.CodeOf(err), c.code, c.why)
			}
			var eid *storage.EventIDError
			if errors.As(err, &eid) != (c.part != "") || eid != nil && eid.Part != c.part {
				t.Errorf("%s: %v; want the part %q of an event id", c.name, err, c.part)
			}
			var told *storage.Error
			if errors.As(err, &told) && c.code == storage.NotFound && told.Message != "there is no such session; send initialize to open one" {
				t.Errorf("%s: the client is told %q", c.name, told.Message)
			}
		})
	}
}

// withState stores another session, after f has changed its fields.
func withState(t *testing.T, store storage.Store, f func(*storage.Session)) storage.ID {
	t.Helper()
	now := time.Now()
	s := storage.Session{
		ID: storage.NewID(), Server: "s", Tenant: "t", Principal: "p", Transport: storage.HTTP, State: storage.Ready,
		Pushes: true, Created: now, Used: now, Expires: now.Add(time.Hour),
	}
	f(&s)
	commontest.OK(t, store.Create(t.Context(), s))
	return s.ID
}

func TestAnOperatorEndsASession(t *testing.T) {
	h, store, id := listening(t)
	for range 2 {
		commontest.OK(t, h.Terminate(t.Context(), id))
	}
	if s := record(t, store, id); s.State != storage.Ended || s.Quit != storage.QuitService {
		t.Errorf("state %q, quit %q", s.State, s.Quit)
	}
	if err := h.Terminate(t.Context(), storage.NewID()); storage.CodeOf(err) != storage.NotFound {
		t.Errorf("a session that is not there: %v", err)
	}
}

func TestAnInitializeThatFailsSaysWhyThereIsNoSession(t *testing.T) {
	for raw, want := range map[string]storage.Quit{
		`{"jsonrpc":"2.0","id":0,"error":{"code":-32603,"message":"no such module"}}`: storage.QuitNoInit,
		`{"jsonrpc":"2.0","id":0,"error":{"code":-32800,"message":"cancelled"}}`:      storage.QuitCanceled,
	} {
		_, store, _ := listening(t)
		id := withState(t, store, func(s *storage.Session) { s.State = storage.Created })
		err := sessions.Publisher{Store: store}.Append(t.Context(), storage.Address{Session: id, Stream: "r", Init: true}, storage.Batch{
			Session: id, Stream: "r", First: 1, Final: true, Events: [][]byte{[]byte(raw)}, Expires: time.Now().Add(time.Hour),
		})
		if got := record(t, store, id).Quit; err != nil || got != want {
			t.Errorf("%s: quit %q, %v; want %q", raw, got, err, want)
		}
	}
}
