package sessions_test

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/config/held"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

const (
	wholeList   = `{"x": 1, "tools":[{"name":"read","n":1.0}, {"name":"write_a"} ,{"name":"write_b"},{"n":2}]}`
	visibleList = `{"x": 1, "tools":[{"name":"read","n":1.0},{"name":"write_b"},{"n":2}]}`
)

// seesSome returns the caller with a filter that denies the tools write_*, except write_b.
func seesSome(c sessions.Caller) sessions.Caller {
	c.Tools = storage.ToolFilter{Allow: []string{"write_b"}, Deny: []string{"write_*"}}
	return c
}

func response(id, result string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"result":` + result + `}`
}

func (l *lister) stored(t *testing.T, d *sessions.Delivery) string {
	t.Helper()
	page, err := l.store.Read(t.Context(), d.Session, d.Stream, 0, 10)
	if err != nil || len(page.Events) == 0 {
		t.Fatal(page, err)
	}
	return string(page.Events[len(page.Events)-1].Raw)
}

// Even if the caller who asks first sees only some tools, the record keeps all of them
// for the next caller. The filter costs no additional read or write.
func TestACallerSeesItsToolsOnly(t *testing.T) {
	costs := map[bool][2]int{}
	for _, some := range []bool{false, true} {
		l := newLister(t)
		c, want := httpCaller(), wholeList
		if some {
			c, want = seesSome(c), visibleList
		}
		id := l.legacy(t, c, superset)
		l.store.Reset()
		_, d := l.ask(t, c, id, askTools)
		l.answers(t, d, `"result":`+wholeList)
		commontest.EqualIn(t, "from the process", response("7", want), l.stored(t, d))
		// A box that does not know whether its batch arrived sends it again.
		l.answers(t, d, `"result":`+wholeList)
		if got, _ := l.ask(t, c, id, askTools); got != response("7", want) {
			t.Errorf("some %t: from the record: %s", some, got)
		}
		n := l.store.Counts()
		costs[some] = [2]int{n.Reads, n.Writes}
		for filter, want := range map[*sessions.Caller]string{ptr(httpCaller()): wholeList, ptr(seesSome(httpCaller())): visibleList} {
			if got, _ := l.ask(t, *filter, l.legacy(t, *filter, superset), askTools); got != response("7", want) {
				t.Errorf("some %t: the next client: %s", some, got)
			}
		}
		modern := sessions.Client{Init: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":` + superset + `}`)}
		call, _, err := l.Send(t.Context(), seesSome(modernCaller), modern, "tools/list", nil)
		commontest.OK(t, err)
		if events, err := call.Next(t.Context(), time.Now()); err != nil || string(wire.Lookup(events[0].Raw, "result")) != visibleList {
			t.Errorf("some %t: a client without a session: %+v %v", some, events, err)
		}
	}
	commontest.EqualIn(t, "it costs", costs[false], costs[true])
}

func ptr(c sessions.Caller) *sessions.Caller { return &c }

// A page, and a list in a batch, come from the process each time. An answer to another
// request stays as it is, whatever it looks like.
func TestACallerSeesItsToolsOnPagesAndInBatches(t *testing.T) {
	l := newLister(t)
	c := seesSome(httpCaller())
	id := l.legacy(t, c, `{}`)
	_, d := l.ask(t, c, id, `{"jsonrpc":"2.0","id":"p","method":"tools/list","params":{"cursor":"2"}}`)
	l.answers(t, d, `"result":{"tools":[{"name":"write_a"}],"nextCursor":"3"}`)
	commontest.EqualIn(t, "a page", response(`"p"`, `{"tools":[],"nextCursor":"3"}`), l.stored(t, d))
	msgs, batch, err := wire.ParseBody([]byte(`[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read"}},{"jsonrpc":"2.0","id":2.0,"method":"tools/list"}]`))
	commontest.OK(t, err)
	_, err = l.Accept(t.Context(), c, id, msgs, batch)
	commontest.OK(t, err)
	d = &(*l.deliveries)[len(*l.deliveries)-1]
	for i, answer := range []string{response("1", wholeList), response("2.0", wholeList)} {
		l.says(t, d.Address, storage.Batch{
			Session: d.Session, Stream: d.Stream, First: storage.Index(i + 1), Gen: 1, Seq: int64(i + 1), Final: i == 1, Events: [][]byte{[]byte(answer)},
		})
		want := []string{response("1", wholeList), response("2.0", visibleList)}[i]
		commontest.EqualIn(t, "in a batch", want, l.stored(t, d))
	}
	_, d = l.ask(t, c, id, `{"jsonrpc":"2.0","id":9,"method":"prompts/list"}`)
	l.answers(t, d, `"result":`+wholeList)
	if got := l.stored(t, d); got != response("9", wholeList) || d.Shown != nil {
		t.Errorf("prompts: %s", got)
	}
	_, d = l.ask(t, c, id, askTools)
	l.answers(t, d, `"error":{"code":1,"message":"no"}`)
	commontest.EqualIn(t, "an error", `{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"no"}}`, l.stored(t, d))
}

// The function that writes events for a client of WebSocket or HTTP+SSE also pushes them.
// It pushes them again if it does not know whether they arrived.
func TestACallerIsPushedItsToolsOnly(t *testing.T) {
	store, g := storagetest.NewMemory(), newGateway("c1")
	s := connect(t, wsHost(store, g), "c1", "")
	out := sessions.Publisher{Store: store, Clients: g}
	shown := &storage.Shown{Tools: seesSome(sessions.Caller{}).Tools, Lists: []json.RawMessage{json.RawMessage("7")}}
	a := storage.Address{Session: s.ID, Stream: storage.NewStreamID(), Conn: "c1", Shown: shown}
	b := batchOf(a, 1, response("7", wholeList))
	b.Final = true
	for range 2 {
		commontest.OK(t, out.Append(t.Context(), a, b))
	}
	for _, got := range g.got["c1"] {
		commontest.EqualIn(t, "the connection got", response("7", visibleList), got)
	}
	commontest.EqualIn(t, "the connection got nothing", false, len(g.got["c1"]) == 0)
	a = storage.Address{Session: s.ID, Stream: storage.NewStreamID(), LegacySSE: true, Shown: shown}
	b.Stream = a.Stream
	for range 2 {
		commontest.OK(t, out.Append(t.Context(), a, b))
	}
	page, err := store.Read(t.Context(), s.ID, storage.LegacySSE, 0, 10)
	if err != nil || len(page.Events) != 1 || string(page.Events[0].Raw) != response("7", visibleList) {
		t.Errorf("the stream has %+v, %v", page.Events, err)
	}
}

// A lock that cannot be read ends the request. Otherwise the box would send the list again and again.
func TestABrokenLockEndsARequestForTools(t *testing.T) {
	lock := held.LockOf(filepath.Join(t.TempDir(), "servers.json"), false)
	commontest.OK(t, os.WriteFile(lock.Path(), []byte("<<<<<<< HEAD"), 0o600))
	store := storagetest.NewMemory()
	out := sessions.Publisher{Store: store, Held: held.NewKeeper(store, lock, slog.New(slog.DiscardHandler), nil)}
	a := storage.Address{Session: "s", Stream: storage.NewStreamID(), Shown: &storage.Shown{Pin: &storage.Pin{Server: "s"}, Lists: []json.RawMessage{json.RawMessage("7")}}}
	commontest.OK(t, out.Append(t.Context(), a, batchOf(a, 1, response("7", wholeList))))
	if page, err := store.Read(t.Context(), a.Session, a.Stream, 0, 1); err != nil || !strings.Contains(string(page.Events[0].Raw), "servers.lock.json cannot be read (invalid character '<'") {
		t.Errorf("%+v %v", page, err)
	}
}

// Dormouse tells the clients of held tools when one is taken, and offers that to each of them.
// What the server says of itself stays in the record.
func TestClientsOfHeldToolsAreOfferedThatListsChange(t *testing.T) {
	const (
		says   = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":false}}}`
		offers = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}}}`
		none   = `{"protocolVersion":"2025-11-25","capabilities":{"prompts":{}}}`
	)
	for name, tt := range map[string]struct {
		pin        *storage.Pin
		says, want string
	}{
		"held":           {&storage.Pin{Server: "s"}, says, offers},
		"held, no tools": {&storage.Pin{Server: "s"}, none, none},
		"not held":       {nil, says, says},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLister(t)
			c := httpCaller()
			c.Server.Pin = tt.pin
			m := parsed(t, `{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
			s, _, err := l.Initialize(t.Context(), c, "", m)
			commontest.OK(t, err)
			l.answers(t, &(*l.deliveries)[0], `"result":`+tt.says)
			commontest.EqualIn(t, "from the process", response("7", tt.want), l.stored(t, &(*l.deliveries)[0]))
			if s, _, err = l.Load(t.Context(), c, s.ID); err != nil || s.Pushes != (tt.want == offers) {
				t.Errorf("the session has Pushes %t, %v", s.Pushes, err)
			}
			commontest.OK(t, l.store.SaveHandshake(t.Context(), storage.Handshake{Digest: storage.RecordFor("t", "d1"), Version: wire.V20251125, Result: json.RawMessage(tt.says)}))
			_, call, err := l.Initialize(t.Context(), c, "", m)
			commontest.OK(t, err)
			if events, err := call.Next(t.Context(), time.Now()); err != nil || string(events[0].Raw) != response("7", tt.want) {
				t.Errorf("from the record: %v, %v", events, err)
			}
			if got, err := l.Greetings(t.Context(), []sessions.Caller{c}, wire.V20251125); err != nil || string(got[0].Result) != tt.want {
				t.Errorf("in a group: %+v, %v", got, err)
			}
		})
	}
}
