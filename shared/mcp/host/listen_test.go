package host_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/host"
	"github.com/dormouse-mcp/dormouse/shared/store/sessiontest"
)

// nobody is a backend that does nothing.
type nobody struct{}

func (nobody) Deliver(context.Context, host.Delivery, session.Box) (host.Tracker, error) {
	return nil, nil
}

func (nobody) Track(context.Context, session.Session, session.StreamID) (host.Tracker, error) {
	return nil, session.NotFound
}
func (nobody) Answer(context.Context, session.Answer, session.Box) error { return nil }
func (nobody) End(context.Context, session.Session, session.Box) error   { return nil }

var someone = host.Caller{Server: host.Server{Name: "s"}, Tenant: "t", Principal: "p", Transport: session.HTTP}

// parsed returns a client's message.
func parsed(t *testing.T, raw string) wire.Message {
	t.Helper()
	m, err := wire.Parse([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// accept has a host take a message of the client someone.
func accept(t *testing.T, h *host.Host, id session.ID, raw string) (*host.Call, error) {
	t.Helper()
	return h.Accept(t.Context(), someone, id, []wire.Message{parsed(t, raw)}, false)
}

// awake makes the box of the server s awake.
func awake(t *testing.T, store session.Store) {
	t.Helper()
	if err := store.SaveBox(t.Context(), session.Box{ID: session.BoxFor("t", "s"), State: session.Awake, Gen: 1}); err != nil {
		t.Fatal(err)
	}
}

// listening returns a session with three events on its standalone stream.
func listening(t *testing.T) (*host.Host, *sessiontest.Memory, session.ID) {
	t.Helper()
	store := sessiontest.NewMemory()
	now := time.Now()
	s := session.Session{
		ID: session.NewID(), Server: "s", Tenant: "t", Principal: "p", Transport: session.HTTP, State: session.Ready,
		Pushes: true, Created: now, Used: now, Expires: now.Add(24 * time.Hour),
	}
	if err := store.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	push(t, store, s.ID, 1, "1", "2", "3")
	return host.New(store, nobody{}, host.Limits{}), store, s.ID
}

func push(t *testing.T, store session.Store, id session.ID, first session.Index, raws ...string) {
	t.Helper()
	b := session.Batch{Session: id, First: first, Gen: 1, Seq: int64(first), Expires: time.Now().Add(time.Hour)}
	for _, raw := range raws {
		b.Events = append(b.Events, []byte(raw))
	}
	if err := store.Append(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// get opens a GET, holds it for a time and closes it. It returns the events, and the id
// with which a client would come back.
func get(t *testing.T, h *host.Host, id session.ID, last string, hold time.Duration) (got, cursor string) {
	t.Helper()
	call, err := h.Resume(t.Context(), someone, id, last)
	if last == "" {
		call, err = h.Listen(t.Context(), someone, id, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	cursor = call.Cursor().String()
	for until := time.Now().Add(hold); time.Now().Before(until); {
		events, err := call.Next(t.Context(), until)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			got, cursor = got+string(e.Raw), call.ID(e).String()
		}
	}
	return got, cursor
}

func TestAListenerGetsWhatNobodyHasReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, id := listening(t)
		got, _ := get(t, h, id, "", time.Second)
		time.Sleep(time.Minute)
		again, cursor := get(t, h, id, "", time.Second)
		if got != "123" || again != "123" {
			t.Errorf("got %q, then %q without a report in between; want all both times", got, again)
		}
		time.Sleep(time.Minute)
		if got, _ := get(t, h, id, cursor, time.Second); got != "" {
			t.Errorf("got %q after all was reported", got)
		}
		time.Sleep(time.Minute)
		if got, _ := get(t, h, id, "", time.Second); got != "" {
			t.Errorf("another client got %q after all was reported", got)
		}
	})
}

func TestAStandbyThatBecomesThePrimaryRepeatsNothingThatWasReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, store, id := listening(t)
		_, cursor := get(t, h, id, "", time.Second)
		time.Sleep(time.Minute)
		go func() { _, _ = get(t, h, id, cursor, 20*time.Second) }() // reports 3 and becomes the primary
		synctest.Wait()
		_, standby := get(t, h, id, "", time.Second)
		time.Sleep(time.Minute)
		push(t, store, id, 4, "4")
		if got, _ := get(t, h, id, standby, time.Second); got != "4" {
			t.Errorf("got %q, want the new event only", got)
		}
	})
}

func TestAnIDFromTheFutureHidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, store, id := listening(t)
		got, _ := get(t, h, id, "1000", time.Second)
		push(t, store, id, 4, "4")
		time.Sleep(time.Minute)
		next, _ := get(t, h, id, "", time.Second)
		if got != "" || next != "4" {
			t.Errorf("got %q, then %q; want nothing, then what is new", got, next)
		}
	})
}
