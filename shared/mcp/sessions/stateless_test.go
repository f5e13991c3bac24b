package sessions_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

type took struct {
	nobody
	mu         *sync.Mutex
	deliveries *[]sessions.Delivery
}

func newTook() took { return took{mu: &sync.Mutex{}, deliveries: &[]sessions.Delivery{}} }

func (b took) Deliver(_ context.Context, d sessions.Delivery, _ storage.Box) (sessions.Tracker, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*b.deliveries = append(*b.deliveries, d)
	return nil, nil
}

var (
	modernCaller = sessions.Caller{
		Server: sessions.Server{Name: "s", Digest: "d1", Record: true}, Identity: storage.Identity{Tenant: "t", Principal: "p"}, Transport: storage.Modern,
	}
	modernClient = sessions.Client{Init: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"first"}}`)}
)

func send(t *testing.T, h *sessions.Manager, c sessions.Caller, client sessions.Client) (*sessions.Call, json.RawMessage) {
	t.Helper()
	call, server, err := h.Send(t.Context(), c, client, "tools/call", json.RawMessage(`{"name":"x"}`))
	commontest.OK(t, err)
	return call, server
}

func pinned(t *testing.T, store storage.Store, c sessions.Caller) storage.Session {
	t.Helper()
	return record(t, store, sessions.PinnedID(c))
}

func TestPinnedIDIsOfTenantPrincipalServerAndKind(t *testing.T) {
	base := modernCaller
	others := map[string]func(*sessions.Caller){
		"tenant":    func(c *sessions.Caller) { c.Tenant = "t2" },
		"principal": func(c *sessions.Caller) { c.Principal = "p2" },
		"server":    func(c *sessions.Caller) { c.Server.Name = "s2" },
		"kind":      func(c *sessions.Caller) { c.Kind = "k2" },
		"where they end": func(c *sessions.Caller) {
			c.Tenant, c.Principal = `t" "p`, ""
		},
	}
	for name, change := range others {
		c := base
		if change(&c); sessions.PinnedID(c) == sessions.PinnedID(base) {
			t.Errorf("%s does not matter", name)
		}
	}
	again := base
	again.Server.Digest, again.Conn = "d2", "c"
	commontest.EqualIn(t, "with another digest and connection", sessions.PinnedID(base), sessions.PinnedID(again))
}

func TestBudgetOfAModernCall(t *testing.T) {
	store := storagetest.NewCounting(storagetest.NewMemory())
	b := newTook()
	h := sessions.New(store, b, sessions.Limits{})
	record := storage.Handshake{Digest: storage.RecordFor("t", "d1"), Version: wire.V20251125, Result: json.RawMessage(`{"serverInfo":{"name":"srv"}}`)}
	commontest.OK(t, store.SaveHandshake(t.Context(), record))
	steps := []struct {
		name          string
		do            func()
		reads, writes int
	}{
		{"discover", func() {
			if result, call, err := h.Greeting(t.Context(), modernCaller, modernClient); err != nil || call != nil || string(result) != string(record.Result) {
				t.Errorf("got %s %v %v", result, call, err)
			}
		}, 1, 0},
		{"the first of all", func() { send(t, h, modernCaller, modernClient) }, 2, 2},
		{"any other", func() { send(t, h, modernCaller, modernClient) }, 1, 0},
		{"the first that wants log messages", func() { send(t, h, modernCaller, sessions.Client{Verbose: true}) }, 1, 1},
		{"the next that does", func() { send(t, h, modernCaller, sessions.Client{Verbose: true}) }, 1, 0},
	}
	for _, s := range steps {
		store.Reset()
		s.do()
		if n := store.Counts(); n.Reads != s.reads || n.Writes != s.writes {
			t.Errorf("%s: %d reads and %d writes (%v), want %d and %d", s.name, n.Reads, n.Writes, n.Calls, s.reads, s.writes)
		}
	}
}

func TestPinnedSessionBeginsAnewWhenItIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storagetest.NewMemory()
		h := sessions.New(store, newTook(), sessions.Limits{})
		send(t, h, modernCaller, modernClient)
		commontest.OK(t, h.Terminate(t.Context(), sessions.PinnedID(modernCaller)))
		send(t, h, modernCaller, modernClient)
		if s := pinned(t, store, modernCaller); s.State != storage.Ready || s.Quit != storage.QuitNone {
			t.Errorf("ended by an operator: %+v", s)
		}
		time.Sleep(8 * 24 * time.Hour)
		if _, _, err := store.Load(t.Context(), sessions.PinnedID(modernCaller), ""); !errors.Is(err, storage.NotFound) {
			t.Errorf("it has not expired: %v", err)
		}
		send(t, h, modernCaller, modernClient)
		pinned(t, store, modernCaller)
	})
}

func TestModernClientThatSaysTooMuchOfItselfIsRefused(t *testing.T) {
	store := storagetest.NewMemory()
	h := sessions.New(store, newTook(), sessions.Limits{})
	of := func(size int) sessions.Client {
		return sessions.Client{Init: json.RawMessage(`{"clientInfo":"` + strings.Repeat("x", size-len(`{"clientInfo":""}`)) + `"}`)}
	}
	for range 2 {
		if _, _, err := h.Send(t.Context(), modernCaller, of(64<<10+1), "tools/call", nil); !errors.Is(err, storage.TooLarge) {
			t.Errorf("got %v", err)
		}
	}
	if _, _, err := store.Load(t.Context(), sessions.PinnedID(modernCaller), ""); !errors.Is(err, storage.NotFound) {
		t.Errorf("a session was made: %v", err)
	}
	send(t, h, modernCaller, of(64<<10))
}

func TestSubscriptionsOfAListenerAreBounded(t *testing.T) {
	h := sessions.New(storagetest.NewMemory(), newTook(), sessions.Limits{})
	long := strings.Repeat("u", 50<<10)
	for name, c := range map[string]struct {
		uris []string
		want storage.Code
	}{
		"100 KiB":       {[]string{"a:" + long, "b:" + long}, ""},
		"150 KiB":       {[]string{"a:" + long, "b:" + long, "c:" + long}, storage.Busy},
		"501 resources": {make([]string, 501), storage.Busy},
	} {
		caller := modernCaller
		caller.Principal = name
		_, err := h.Subscribe(t.Context(), caller, modernClient, c.uris)
		commontest.Equal(t, c.want, storage.CodeOf(err))
	}
}

// Recall leaves out log messages and old progress: a call may have sent more events than
// a function has memory for.
func TestRecalledCallIsWhatHasBecomeOfIt(t *testing.T) {
	store := storagetest.NewMemory()
	h := sessions.New(store, newTook(), sessions.Limits{})
	call, _ := send(t, h, modernCaller, modernClient)
	const question, end = `{"jsonrpc":"2.0","id":"q","method":"roots/list"}`, `{"jsonrpc":"2.0","id":"x","result":{}}`
	progress := func(i int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":%d}}`, i)
	}
	for i, raw := range []string{question, progress(1), `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`, progress(2), end} {
		b := storage.Batch{Session: sessions.PinnedID(modernCaller), Stream: call.Stream(), First: storage.Index(i + 1), Events: [][]byte{[]byte(raw)}, Final: raw == end}
		commontest.OK(t, store.Append(t.Context(), b))
	}
	r, err := h.Recall(t.Context(), modernCaller, call.Stream())
	commontest.OK(t, err)
	var got []string
	for _, e := range r.Events {
		got = append(got, string(e.Raw))
	}
	commontest.Same(t, []string{question, progress(2), end}, got)
	if r.Last() != 5 || !r.Ended() {
		t.Errorf("the last is %d, and it has ended: %t", r.Last(), r.Ended())
	}
}
