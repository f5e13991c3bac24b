package sessions_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

const toolList = `{"tools":[{"name":"a","inputSchema":{"type":"object"},"x-extra":9007199254740993}]}`

// lister is a host whose backend keeps its deliveries. The test answers in place of the box.
type lister struct {
	*sessions.Manager
	store *storagetest.Counting
	gen   storage.Generation // of the box
	took
}

func newLister(t *testing.T) *lister {
	t.Helper()
	store := storagetest.NewCounting(storagetest.NewMemory())
	b := newTook()
	return &lister{sessions.New(store, b, sessions.Limits{}), store, 1, b}
}

func (l *lister) legacy(t *testing.T, c sessions.Caller, capabilities string) storage.ID {
	t.Helper()
	m := parsed(t, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`,"clientInfo":{"name":"c"}}}`)
	s, _, err := l.Initialize(t.Context(), c, "", m)
	commontest.OK(t, err)
	return s.ID
}

// ask sends a request of a legacy client. It returns the answer from the record, or the
// delivery that the box gets.
func (l *lister) ask(t *testing.T, c sessions.Caller, id storage.ID, raw string) (string, *sessions.Delivery) {
	t.Helper()
	before := len(*l.deliveries)
	call, err := l.Accept(t.Context(), c, id, []wire.Message{parsed(t, raw)}, false)
	commontest.OK(t, err)
	if len(*l.deliveries) > before {
		return "", &(*l.deliveries)[before]
	}
	events, err := call.Next(t.Context(), time.Now())
	if err != nil || len(events) != 1 {
		t.Fatalf("got %v %v", events, err)
	}
	return string(events[0].Raw), nil
}

func (l *lister) answers(t *testing.T, d *sessions.Delivery, result string) {
	t.Helper()
	if d == nil {
		t.Fatal("the box was not asked")
	}
	l.says(t, d.Address, storage.Batch{
		Session: d.Session, Stream: d.Stream, First: 1, Gen: l.gen, Seq: 1, Final: true,
		Events: [][]byte{[]byte(`{"jsonrpc":"2.0","id":` + string(d.Requests[0]) + `,` + result + `}`)},
	})
}

func (l *lister) says(t *testing.T, a storage.Address, b storage.Batch) {
	t.Helper()
	commontest.OK(t, (sessions.Publisher{Store: l.store}).Append(t.Context(), a, b))
}

func httpCaller() sessions.Caller {
	c := modernCaller
	c.Transport = storage.HTTP
	return c
}

const superset = `{"roots":{},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}}`

const askTools = `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`

func TestListIsAnsweredFromTheRecordInBothEras(t *testing.T) {
	l := newLister(t)
	id := l.lists(t, superset)

	l.store.Reset()
	if got, _ := l.ask(t, httpCaller(), id, `{"jsonrpc":"2.0","id":"x","method":"tools/list","params":{"_meta":{"progressToken":1}}}`); got != `{"jsonrpc":"2.0","id":"x","result":`+toolList+`}` {
		t.Errorf("the legacy client got %s", got)
	}
	if n := l.store.Counts(); n.Reads != 2 || n.Writes != 0 {
		t.Errorf("that took %v", n.Calls)
	}
	modern := sessions.Client{Init: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":` + superset + `}`), Verbose: true}
	for range 2 {
		l.store.Reset()
		call, _, err := l.Send(t.Context(), modernCaller, modern, "tools/list", nil)
		commontest.OK(t, err)
		events, err := call.Next(t.Context(), time.Now())
		if want := `{"jsonrpc":"2.0","id":"` + string(call.Stream()) + `","result":` + toolList + `}`; err != nil || string(events[0].Raw) != want {
			t.Errorf("the modern client got %v %v", events, err)
		}
	}
	if n := l.store.Counts(); n.Writes != 0 || n.Reads != 3 { // the third read is for the server's name, which no record has here
		t.Errorf("that took %v", n.Calls)
	}
	commontest.EqualIn(t, "deliveries, want the initialize and the first list", 2, len(*l.deliveries))
}

func TestListIsNotAnsweredFromARecordOfOthers(t *testing.T) {
	other := func(change func(*sessions.Caller)) sessions.Caller {
		c := httpCaller()
		change(&c)
		return c
	}
	for name, c := range map[string]struct {
		caller                sessions.Caller
		capabilities, request string
	}{
		"another tenant":        {other(func(c *sessions.Caller) { c.Tenant = "t2" }), `{}`, askTools},
		"another configuration": {other(func(c *sessions.Caller) { c.Server.Digest = "d2" }), `{}`, askTools},
		"lists not kept":        {other(func(c *sessions.Caller) { c.Server.OwnLists = true }), `{}`, askTools},
		"record off":            {other(func(c *sessions.Caller) { c.Server.Record = false }), `{}`, askTools},
		"a page":                {httpCaller(), `{}`, `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"cursor":"2"}}`},
	} {
		l := newLister(t)
		l.lists(t, `{}`)
		if got, d := l.ask(t, c.caller, l.legacy(t, c.caller, c.capabilities), c.request); d == nil {
			t.Errorf("%s: answered with %s", name, got)
		}
	}
}

// Real clients declare capabilities with values. The order and the spaces of their JSON do
// not matter, nor do values that tell a server nothing about lists.
func TestListsAreKeptForClientsWithTheSameAbilities(t *testing.T) {
	for name, c := range map[string]struct {
		first, second string
		same          bool
	}{
		"modes of elicitation":        {`{"elicitation":{"form":{},"url":{}}}`, `{"elicitation": {"url": {}, "form": {"x":1}}}`, true},
		"other modes of elicitation":  {`{"elicitation":{"form":{},"url":{}}}`, `{"elicitation":{"form":{}}}`, false},
		"an extension, another value": {`{"extensions":{"a/ui":{"mimeTypes":["x"]}}}`, `{"extensions":{"a/ui":{"mimeTypes":["y"]}}}`, false},
		"an extension and none":       {`{"extensions":{"a/ui":{}}}`, `{}`, false},
	} {
		l := newLister(t)
		l.lists(t, c.first)
		if _, d := l.ask(t, httpCaller(), l.legacy(t, httpCaller(), c.second), askTools); (d == nil) != c.same {
			t.Errorf("%s: the second client is answered from the record: %t", name, d == nil)
		}
	}
}

func TestNothingIsAnsweredFromARecordThatHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLister(t)
		l.lists(t, `{}`)
		time.Sleep(storage.HandshakeLife + time.Second)
		if got, d := l.ask(t, httpCaller(), l.legacy(t, httpCaller(), `{}`), askTools); d == nil {
			t.Errorf("answered with %s", got)
		}
	})
}

func TestWhatIsNotAWholeListIsNotKept(t *testing.T) {
	for name, c := range map[string]struct{ request, result string }{
		"a first page": {askTools, `"result":{"tools":[],"nextCursor":"2"}`},
		"a later page": {`{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"cursor":"2"}}`, `"result":{"tools":[]}`},
		"an error":     {askTools, `"error":{"code":-32601,"message":"no tools"}`},
		"too long":     {askTools, `"result":{"tools":["` + strings.Repeat("x", 256<<10) + `"]}`},
		"no object":    {askTools, `"result":[]`},
	} {
		l := newLister(t)
		id := l.legacy(t, httpCaller(), `{}`)
		_, d := l.ask(t, httpCaller(), id, c.request)
		l.answers(t, d, c.result)
		if got, d := l.ask(t, httpCaller(), id, askTools); d == nil {
			t.Errorf("%s: answered with %.100s", name, got)
		}
	}
}

func TestListThatHasChangedIsAskedForUntilALaterGenerationHasListed(t *testing.T) {
	for notification, list := range map[string]string{
		wire.NotifyToolsChanged:     wire.MethodToolsList,
		wire.NotifyPromptsChanged:   wire.MethodPromptsList,
		wire.NotifyResourcesChanged: wire.MethodResourceTemplatesList,
	} {
		l := newLister(t)
		request := `{"jsonrpc":"2.0","id":7,"method":"` + list + `"}`
		id := l.legacy(t, httpCaller(), `{}`)
		asked := func(when string, want bool) *sessions.Delivery {
			t.Helper()
			_, d := l.ask(t, httpCaller(), id, request)
			if asked := d != nil; asked != want {
				t.Fatalf("%s, %s: the box was asked: %t", list, when, asked)
			}
			return d
		}
		d := asked("at first", true)
		l.answers(t, d, `"result":{}`)
		asked("once it is known", false)
		l.says(t, d.Address, storage.Batch{Session: d.Session, Stream: storage.Standalone, First: 1, Gen: 1, Seq: 2, Events: [][]byte{
			wire.NewNotification(wire.NotifyResourceUpdated, nil), wire.NewNotification(notification, nil),
		}})
		l.answers(t, asked("when it has changed", true), `"result":{}`)
		d = asked("when it was asked for since", true)
		l.gen = 2
		l.answers(t, d, `"result":{}`)
		asked("when a later generation has listed", false)
	}
}

func (l *lister) box(t *testing.T, change func(*storage.Box)) {
	t.Helper()
	b, err := l.store.Box(t.Context(), storage.BoxFor("t", "s"))
	if err == nil {
		change(&b)
		err = l.store.SaveBox(t.Context(), b)
	}
	commontest.OK(t, err)
}

// announcing stores a handshake. announces says whether the server announces changes of its lists.
func (l *lister) announcing(t *testing.T, announces string) {
	t.Helper()
	commontest.OK(t, l.store.SaveHandshake(t.Context(), storage.Handshake{
		Digest: storage.RecordFor("t", "d1"), Version: wire.V20251125,
		Result: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":` + announces + `}}}`),
	}))
}

// Whether the record answers depends on the state of the box, and on whether the session's
// own process has done more than answer lists.
func TestRecordSaysWhatTheOwnProcessOfASessionWouldSay(t *testing.T) {
	const call = `{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"x"}}`
	sleeps, wakes := func(*storage.Box) {}, func(b *storage.Box) { b.State, b.Gen = storage.Awake, 2 }
	for name, c := range map[string]struct {
		announces string
		then      func(*storage.Box)
		called    bool // the session that asks has called a tool
		asked     bool
	}{
		"announces, asleep":                       {"true", sleeps, false, false},
		"announces, awake for others":             {"true", wakes, false, false},
		"announces, its own process may be awake": {"true", wakes, true, true},
		"announces, another has worked":           {"true", func(b *storage.Box) { b.Gen, b.Worked = 2, 2 }, false, false},
		"silent, asleep":                          {"false", sleeps, false, false},
		"silent, awake":                           {"false", wakes, false, true},
		"silent, worked since":                    {"false", func(b *storage.Box) { b.Gen, b.Worked = 1, 1 }, false, true},
		"silent, worked before":                   {"false", func(b *storage.Box) { b.Gen, b.Worked = 1, 0 }, false, false},
		"silent, has called":                      {"false", sleeps, true, true},
	} {
		l := newLister(t)
		l.announcing(t, c.announces)
		l.lists(t, `{}`)
		id := l.legacy(t, httpCaller(), `{}`)
		if c.called {
			l.ask(t, httpCaller(), id, call)
		}
		l.box(t, c.then)
		if _, d := l.ask(t, httpCaller(), id, askTools); (d != nil) != c.asked {
			t.Errorf("%s: the box was asked: %t", name, d != nil)
		}
	}
}

func TestListsOfAPrincipalAreNoOthers(t *testing.T) {
	for method, shared := range map[string]bool{
		wire.MethodToolsList: true, wire.MethodResourceTemplatesList: true, wire.MethodPromptsList: false, wire.MethodResourcesList: false,
	} {
		for _, same := range []bool{false, true} {
			l := newLister(t)
			alice := httpCaller()
			alice.Server.SameLists = same
			mallory := alice
			mallory.Principal = "mallory"
			request := `{"jsonrpc":"2.0","id":7,"method":"` + method + `"}`
			_, d := l.ask(t, alice, l.legacy(t, alice, `{}`), request)
			l.answers(t, d, `"result":{"of":"alice"}`)
			if got, d := l.ask(t, mallory, l.legacy(t, mallory, `{}`), request); (d == nil) != (same && shared) {
				t.Errorf("%s, declared to be the same for all: %t: mallory got %q", method, same, got)
			}
		}
	}
}

// A process that does not know its principal gives everybody the same lists, unless its
// client has told it something.
func TestListsOfAnAnonymousProcessAreEverybodys(t *testing.T) {
	alice := httpCaller()
	alice.Server.Anonymous = true
	mallory := alice
	mallory.Principal = "mallory"
	const question = `{"jsonrpc":"2.0","id":"q-1","method":"roots/list"}`
	for name, test := range map[string]struct {
		before func(t *testing.T, l *lister, id storage.ID, d *sessions.Delivery)
		shared bool
	}{
		"it was asked for lists only": {shared: true},
		"its client answered before": {before: func(t *testing.T, l *lister, id storage.ID, _ *sessions.Delivery) {
			l.box(t, func(b *storage.Box) { b.State, b.Gen = storage.Awake, l.gen })
			answer(t, l.Manager, id, `{"jsonrpc":"2.0","id":"q-1","result":{"roots":[{"uri":"file:///home/alice"}]}}`)
			l.box(t, func(b *storage.Box) { b.State = storage.Asleep })
		}},
		"its client was asked meanwhile": {before: func(t *testing.T, l *lister, _ storage.ID, d *sessions.Delivery) {
			l.says(t, d.Address, storage.Batch{Session: d.Session, Stream: d.Stream, First: 1, Gen: l.gen, Seq: 1, Events: [][]byte{[]byte(question)}})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, method := range []string{wire.MethodToolsList, wire.MethodPromptsList, wire.MethodResourcesList} {
				l := newLister(t)
				request := `{"jsonrpc":"2.0","id":7,"method":"` + method + `"}`
				id, first := l.legacy(t, alice, superset), storage.Index(1)
				_, d := l.ask(t, alice, id, request)
				if test.before != nil {
					test.before(t, l, id, d)
				}
				if tail, err := l.store.Tail(t.Context(), id, d.Stream); err == nil {
					first = tail.Last + 1
				}
				l.says(t, d.Address, storage.Batch{
					Session: d.Session, Stream: d.Stream, First: first, Gen: l.gen, Seq: 2, Final: true,
					Events: [][]byte{[]byte(`{"jsonrpc":"2.0","id":7,"result":{"of":"alice"}}`)},
				})
				if got, d := l.ask(t, mallory, l.legacy(t, mallory, superset), request); (d == nil) != test.shared {
					t.Errorf("%s: mallory got %q", method, got)
				}
			}
		})
	}
}

// A client that learns of a change asks at once. It would get the old list if that were
// still in the record.
func TestChangedListLeavesTheRecordBeforeAnybodyHearsOfIt(t *testing.T) {
	l := newLister(t)
	id := l.legacy(t, httpCaller(), `{}`)
	_, d := l.ask(t, httpCaller(), id, askTools)
	l.answers(t, d, `"result":{}`)
	faulty := storagetest.NewFaulty(l.store, 1, storagetest.Faults{})
	faulty.Set("Append", storagetest.Faults{Lost: 1})
	err := sessions.Publisher{Store: faulty}.Append(t.Context(), d.Address, storage.Batch{
		Session: d.Session, Stream: storage.Standalone, First: 1, Gen: 1, Seq: 2, Events: [][]byte{wire.NewNotification(wire.NotifyToolsChanged, nil)},
	})
	if err == nil {
		t.Fatal("the append did not fail")
	}
	if got, d := l.ask(t, httpCaller(), id, askTools); d == nil {
		t.Errorf("answered with %s", got)
	}
}

func TestHandshakeOfOneTenantIsNoOthers(t *testing.T) {
	l := newLister(t)
	record := storage.Handshake{Digest: storage.RecordFor("t", "d1"), Version: wire.V20251125, Result: json.RawMessage(`{"serverInfo":{"name":"evil"}}`)}
	commontest.OK(t, l.store.SaveHandshake(t.Context(), record))
	for tenant, asked := range map[string]int{"t": 0, "t2": 2} {
		t.Run(tenant, func(t *testing.T) {
			*l.deliveries = nil
			c := modernCaller
			c.Tenant, c.Server.OwnLists = tenant, true // which is of lists only
			_, _, err := l.Greeting(t.Context(), c, modernClient)
			commontest.OK(t, err)
			c.Transport = storage.HTTP
			l.legacy(t, c, `{}`)
			commontest.EqualIn(t, tenant+": questions to its box", asked, len(*l.deliveries))
		})
	}
}

func TestSessionIsPutIntoABoxThatIsNotFull(t *testing.T) {
	for name, test := range map[string]struct {
		most    int
		spreads bool
		want    int
	}{
		"two are allowed":                        {2, true, 1},
		"one is allowed":                         {1, true, 0},
		"no number is given":                     {0, true, 0},
		"sessions of the server share something": {2, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, c := newLister(t), httpCaller()
			c.Server.Spreads = test.spreads
			l.Manager = l.With(sessions.Parts{Boxes: func(context.Context, string) int { return test.most }})
			box := storage.BoxFor(c.Tenant, c.Server.Name)
			commontest.EqualIn(t, "the first session is in box", 0, l.legacy(t, c, `{}`).Box())
			commontest.OK(t, l.store.SaveBox(t.Context(), storage.Box{ID: box, Tenant: c.Tenant, Server: c.Server.Name}.MarkFull(0, true)))
			id := l.legacy(t, c, `{}`)
			d := (*l.deliveries)[len(*l.deliveries)-1]
			if id.Box() != test.want || d.Box != box.Numbered(test.want) || d.Digest != storage.RecordIn(c.Tenant, c.Server.Digest, id) {
				t.Errorf("the second session is in box %d; its initialize goes to %s and is kept in %s", id.Box(), d.Box, d.Digest)
			}
			commontest.OK(t, l.store.SaveBox(t.Context(), storage.Box{ID: box, Rev: 1})) // box 0 has room again
			if _, d := l.ask(t, c, id, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}`); d == nil || d.Box != box.Numbered(test.want) || d.Session != id {
				t.Errorf("its call goes to %+v", d)
			}
		})
	}
}
