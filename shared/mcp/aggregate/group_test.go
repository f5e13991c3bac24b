package aggregate_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/aggregate"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// echoes is a backend that answers each request with the messages that it got.
type echoes struct{ store storage.Store }

func (b echoes) Deliver(ctx context.Context, d sessions.Delivery, _ storage.Box) (sessions.Tracker, error) {
	if len(d.Requests) == 0 {
		return nil, nil
	}
	content := `{"content":[{"type":"resource_link","uri":"file:///a"}],"got":` + string(d.Raw) + `}`
	return accepted{}, sessions.Publisher{Store: b.store}.Append(ctx, d.Address, storage.Batch{
		Session: d.Session, Stream: d.Stream, First: 1, Gen: 1, Final: true,
		Events: [][]byte{wire.ResultResponse(d.Requests[0], []byte(content))}, Expires: time.Now().Add(time.Hour),
	})
}

func (echoes) Track(context.Context, storage.Session, storage.StreamID) (sessions.Tracker, error) {
	return nil, storage.NotFound
}
func (echoes) Answer(context.Context, storage.Answer, storage.Box) error { return nil }
func (echoes) End(context.Context, storage.Session, storage.Box) error   { return nil }

type accepted struct{}

func (accepted) Check(context.Context) (sessions.Status, error) {
	return sessions.Status{Accepted: true, Next: time.Now().Add(time.Hour)}, nil
}

type world struct {
	t     *testing.T
	store storage.Store
	host  *sessions.Manager
	group *aggregate.Group
}

func grouped(t *testing.T, over storage.Transport, change func(*aggregate.Config), test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := storagetest.NewMemory()
		at := func(server string) sessions.Caller {
			return sessions.Caller{Server: sessions.Server{Name: server, Digest: server}, Tenant: "t", Principal: "p", Transport: over}
		}
		c := aggregate.Config{
			Host: sessions.New(store, echoes{store}, sessions.Limits{}), As: at("/mcp"), Members: []sessions.Caller{at("a"), at("b")},
			Explain: error.Error, Look: 15 * time.Second,
		}
		if change != nil {
			change(&c)
		}
		test(t, &world{t, store, c.Host, aggregate.New(c)})
	})
}

func (w *world) parsed(raw string) wire.Message {
	w.t.Helper()
	m, err := wire.Parse([]byte(raw))
	commontest.OK(w.t, err)
	return m
}

func (w *world) open() storage.ID {
	w.t.Helper()
	id, _, err := w.group.Initialize(w.t.Context(), "", w.parsed(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`))
	commontest.OK(w.t, err)
	w.send(id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return id
}

func (w *world) send(id storage.ID, raw string) (sessions.Routed, sessions.Response) {
	w.t.Helper()
	to, err := w.group.Route(w.t.Context(), id, []wire.Message{w.parsed(raw)}, false)
	commontest.OK(w.t, err)
	call, err := to.Accept(w.t.Context())
	commontest.OK(w.t, err)
	return to, call
}

// push has the process of a member send a message outside of requests.
func (w *world) push(id storage.ID, member string, index storage.Index, raw ...string) {
	w.t.Helper()
	var events [][]byte
	for _, one := range raw {
		events = append(events, []byte(one))
	}
	own := sessions.MemberID(id, member)
	err := sessions.Publisher{Store: w.store}.Append(context.Background(), storage.Address{Session: own, LegacySSE: w.group.Caller().Transport == storage.SSE}, storage.Batch{
		Session: own, First: index, Gen: 1, Seq: int64(index), Events: events, Expires: time.Now().Add(time.Hour),
	})
	commontest.Check(w.t, err)
}

func call(tool string) string {
	return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"` + tool + `"}}`
}

func TestAMessageGoesToItsMemberAndComesBackInTheNamesOfTheGroup(t *testing.T) {
	grouped(t, storage.HTTP, nil, func(t *testing.T, w *world) {
		id := w.open()
		to, response := w.send(id, call("b__echo"))
		if to.Caller.Server.Name != "b" || to.Session != sessions.MemberID(id, "b") {
			t.Errorf("it went to %s in %s", to.Caller.Server.Name, to.Session)
		}
		events, err := response.Next(t.Context(), time.Now().Add(time.Minute))
		if err != nil || len(events) != 1 {
			t.Fatalf("%v, %v", events, err)
		}
		e := events[0]
		if text := string(e.Raw); !strings.Contains(text, `"uri":"dormouse://b/file:///a"`) || !strings.Contains(text, `"name":"echo"`) {
			t.Errorf("got %s", text)
		}
		if want := "b~1/" + string(response.Stream()); e.ID != want || !strings.HasPrefix(response.Start(), "b~0.") || !strings.HasPrefix(response.Cursor(), "b~1.") {
			t.Errorf("the event %q between %q and %q, want %q", e.ID, response.Start(), response.Cursor(), want)
		}
		again, err := w.group.Listen(t.Context(), id, response.Start(), time.Now().Add)
		commontest.OK(t, err)
		got, err := again.Next(t.Context(), time.Now().Add(time.Minute))
		if diff := cmp.Diff(events, got); err != nil || diff != "" {
			t.Errorf("resumed: %v %s", err, diff)
		}
	})
}

func TestANameOfNoMemberIsAnsweredByTheGroup(t *testing.T) {
	grouped(t, storage.HTTP, nil, func(t *testing.T, w *world) {
		id := w.open()
		for _, raw := range []string{call("c__echo"), `{"jsonrpc":"2.0","id":7,"method":"tasks/get","params":{"taskId":"x"}}`, `{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage"}`} {
			_, err := w.group.Route(t.Context(), id, []wire.Message{w.parsed(raw)}, false)
			var answer *wire.Error
			if !errors.As(err, &answer) {
				t.Errorf("%s: got %v", raw, err)
			}
		}
	})
}

func TestStandaloneStreamsOfMembersAreOne(t *testing.T) {
	grouped(t, storage.HTTP, nil, func(t *testing.T, w *world) {
		id := w.open()
		w.send(id, call("a__echo"))
		w.push(id, "a", 1, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:1"}}`)
		listening, err := w.group.Listen(t.Context(), id, "", time.Now().Add)
		commontest.OK(t, err)
		defer listening.Stop(t.Context(), "")
		var got []string
		next := func() {
			t.Helper()
			events, err := listening.Next(t.Context(), time.Now().Add(time.Second))
			commontest.OK(t, err)
			for _, e := range events {
				uri, _ := wire.String(wire.Lookup(e.Raw, "params", "uri"))
				got = append(got, plain(e.ID)+" "+uri)
			}
		}
		next()
		w.push(id, "a", 2, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:2"}}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:0"}}`)
		next()
		w.send(id, call("b__echo")) // from now on it hears b too
		w.push(id, "b", 1, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:3"}}`)
		next()
		want := []string{"a~1 dormouse://a/x:1", "a~2 dormouse://a/x:2", "a~3 dormouse://a/x:0", "a~3;b~0 ", "a~3;b~1 dormouse://b/x:3"}
		commontest.Same(t, want, got)
		commontest.EqualIn(t, "the stream begins at", "a~0", plain(listening.Start()))
		if again, was := w.group.Again(listening.Cursor()), listening.Cursor(); again == was || plain(again) != plain(was) {
			t.Errorf("%q is renewed as %q", was, again)
		}
		if _, _, closed := listening.Close(); closed || listening.Done() {
			t.Error("the stream has ended")
		}
		for !listening.Done() { // the members' streams end when the response must
			next()
		}
		if _, retry, closed := listening.Close(); !closed || retry < time.Second {
			t.Errorf("closed %v, back in %s", closed, retry)
		}
	})
}

// plain returns the id of a place without random words.
func plain(id string) string {
	places := strings.Split(id, ";")
	for i, p := range places {
		places[i], _, _ = strings.Cut(p, ".")
	}
	return strings.Join(places, ";")
}

func TestStreamsOfHTTPSSEAreOne(t *testing.T) {
	grouped(t, storage.SSE, nil, func(t *testing.T, w *world) {
		end := time.Now().Add(time.Minute)
		id, stream, err := w.group.Follow(t.Context(), "", "", end)
		commontest.OK(t, err)
		if _, response, err := w.group.Initialize(t.Context(), id, w.parsed(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{}}}`)); err != nil {
			t.Fatal(err)
		} else if _, err := response.Accepted(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, response := w.send(id, call("b__echo")); response != nil {
			if answers, err := response.Accepted(t.Context()); err != nil || len(answers) > 0 {
				t.Errorf("answered in place: %v, %v", answers, err)
			}
		}
		var ids []string
		for len(ids) < 2 {
			events, err := stream.Next(t.Context(), end)
			if err != nil || len(events) == 0 {
				t.Fatalf("%v, %v", events, err)
			}
			for _, e := range events {
				ids = append(ids, strings.TrimPrefix(e.ID, string(id)))
			}
		}
		commontest.Same(t, []string{";~1", ";~2;b~1"}, ids)
		sent := stream.Cursor()
		stream.Stop(t.Context(), sent)
		back, stream, err := w.group.Follow(t.Context(), "", string(id), end) // without the id of an event
		commontest.OK(t, err)
		defer stream.Stop(t.Context(), "")
		if stream.Cursor() != sent || back != id {
			t.Errorf("it goes on at %q, want %q", stream.Cursor(), sent)
		}
	})
}

func TestAMessageWithoutASessionIsDispatched(t *testing.T) {
	grouped(t, storage.Modern, nil, func(t *testing.T, w *world) {
		to, err := w.group.Dispatch(t.Context(), "kind", w.parsed(call("b__echo")))
		if err != nil || len(to) != 1 {
			t.Fatalf("%v, %v", to, err)
		}
		d := to[0]
		if name, _ := wire.String(wire.Lookup(d.Message.Params, "name")); d.Caller.Server.Name != "b" || d.Caller.Kind != "kind" || name != "echo" {
			t.Errorf("%s gets a call of %s by a client of kind %q", d.Caller.Server.Name, name, d.Caller.Kind)
		}
		commontest.Contains(t, "the client gets", "dormouse://b/a:b", string(d.View([]byte(`{"id":1,"result":{"contents":[{"uri":"a:b"}]}}`))))
		all, err := w.group.Dispatch(t.Context(), "kind", w.parsed(`{"jsonrpc":"2.0","method":"com.example/changed"}`))
		if err != nil || len(all) != 2 {
			t.Errorf("a notification goes to %d members, %v", len(all), err)
		}
		all, err = w.group.Dispatch(t.Context(), "kind", w.parsed(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["dormouse://b/a:b"]}}}`))
		if err != nil || len(all) != 1 || all[0].Caller.Server.Name != "b" || string(wire.Lookup(all[0].Message.Params, "notifications", "resourceSubscriptions")) != `["a:b"]` {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

func TestSearchModeCallsWhatWasFound(t *testing.T) {
	grouped(t, storage.HTTP, func(c *aggregate.Config) { c.Search = true }, func(t *testing.T, w *world) {
		id := w.open()
		to, _ := w.send(id, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"call_tool","arguments":{"name":"a__echo","arguments":{"x":1.0}}}}`)
		want := `{"name":"echo","arguments":{"x":1.0}}`
		if got := string(to.Messages[0].Params); to.Caller.Server.Name != "a" || got != want {
			t.Errorf("%s got %s, want %s", to.Caller.Server.Name, got, want)
		}
		_, response := w.send(id, `{"jsonrpc":"2.0","id":8,"method":"tools/list"}`)
		events, err := response.Next(t.Context(), time.Now())
		if err != nil || len(events) != 1 || !json.Valid(events[0].Raw) || !strings.Contains(string(events[0].Raw), `"find_tools"`) {
			t.Errorf("%v, %v", events, err)
		}
	})
}

func TestOnlyMembersOfTheCallerAreReached(t *testing.T) {
	grouped(t, storage.HTTP, nil, func(t *testing.T, w *world) {
		id := w.open()
		for _, last := range []string{"c~1/" + string(storage.NewStreamID()), "a~x", "a"} {
			if s, err := w.group.Listen(t.Context(), id, last, time.Now().Add); err == nil {
				t.Errorf("%s: %v", last, s)
			}
		}
		answer := w.parsed(`{"jsonrpc":"2.0","id":"c~q-1","result":{}}`)
		if _, err := w.group.Route(t.Context(), id, []wire.Message{answer}, false); storage.CodeOf(err) != storage.Forbidden {
			t.Errorf("got %v", err)
		}
		commontest.OK(t, w.group.End(t.Context(), id))
		commontest.EqualIn(t, "after the end", storage.NotFound, storage.CodeOf(w.group.Say(t.Context(), id)))
	})
}

func TestAMemberWhoseSessionHasEndedHidesNoOther(t *testing.T) {
	grouped(t, storage.HTTP, nil, func(t *testing.T, w *world) {
		id := w.open()
		listening, err := w.group.Listen(t.Context(), id, "", time.Now().Add)
		commontest.OK(t, err)
		defer listening.Stop(t.Context(), "")
		if _, err := listening.Next(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		w.send(id, call("a__echo"))
		commontest.OK(t, w.host.Terminate(t.Context(), sessions.MemberID(id, "a")))
		w.send(id, call("b__echo"))
		events, err := listening.Next(t.Context(), time.Now().Add(time.Second))
		if err != nil || len(events) == 0 || plain(events[0].ID) != "b~0" {
			t.Errorf("%+v, %v", events, err)
		}
	})
}

func TestAStandaloneStreamEndsSoonAfterItsSession(t *testing.T) {
	for name, messages := range map[string][]string{"of no member": nil, "of a member": {call("a__echo")}} {
		t.Run(name, func(t *testing.T) {
			grouped(t, storage.HTTP, nil, func(t *testing.T, w *world) {
				id := w.open()
				for _, m := range messages {
					w.send(id, m)
				}
				listening, err := w.group.Listen(t.Context(), id, "", func(time.Duration) time.Time { return time.Now().Add(time.Hour) })
				commontest.OK(t, err)
				defer listening.Stop(t.Context(), "")
				if _, err := listening.Next(t.Context(), time.Now()); err != nil {
					t.Fatal(err)
				}
				commontest.OK(t, w.group.End(t.Context(), id))
				ended := time.Now()
				for !listening.Done() && time.Since(ended) < time.Minute {
					if _, err := listening.Next(t.Context(), time.Now().Add(time.Second)); err != nil {
						t.Fatal(err)
					}
				}
				if after := time.Since(ended); after > 15*time.Second {
					t.Errorf("the stream was there %s after its session", after)
				}
			})
		})
	}
}
