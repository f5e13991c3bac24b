package box

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

const clientInit = `{"protocolVersion":"2025-06-18","capabilities":{"sampling":{}},"clientInfo":{"name":"c","version":"9"},"x":12345678901234567890}`

func TestFreshProcessIsInitializedAsTheClientWouldHave(t *testing.T) {
	r := newRig(t, "normal")
	r.Deliver(frame.Deliver{
		ID: "d", Session: "s", Ticket: "t", Init: json.RawMessage(clientInit), Level: "debug", Subscribed: []string{"file:///a", "file:///b"},
		Raw: []byte(`{"jsonrpc":"2.0","id":"first","method":"tools/list"}`),
	})
	r.result("d")
	lines := r.seen()
	want := []string{"initialize", "notifications/initialized", "logging/setLevel", "resources/subscribe", "resources/subscribe", "tools/list"}
	commontest.SameIn(t, "the process got", want, methods(lines))
	commontest.EqualIn(t, "initialize has params", clientInit, string(wire.Lookup(lines[0], "params")))
	commontest.EqualIn(t, "the log level", `"debug"`, string(wire.Lookup(lines[2], "params", "level")))
	commontest.EqualIn(t, "the second subscription", `"file:///b"`, string(wire.Lookup(lines[4], "params", "uri")))
	r.none(t, "") // clients do not see the answers to the box's own requests
	h := find(t, r.recorder, "the handshake", isHandshake)
	if h.Session != "s" || h.Ticket != "t" || h.Detail != "2025-06-18" || string(wire.Lookup(h.Payload, "serverInfo", "name")) != `"fake"` {
		t.Errorf("the handshake is told as %+v %s", h, h.Payload)
	}
}

func TestClientsInitializeIsAnsweredFromTheHandshake(t *testing.T) {
	r := newRig(t, "normal")
	var results []string
	for _, id := range []string{`"i1"`, "9007199254740993"} {
		e := r.final(t, r.deliver(`{"jsonrpc":"2.0","id":`+id+`,"method":"initialize","params":`+clientInit+`}`))
		commontest.EqualIn(t, "it is answered under id", id, string(wire.Lookup(e.Raw, "id")))
		results = append(results, string(wire.Lookup(e.Raw, "result")))
		r.deliver(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	}
	commontest.EqualIn(t, "the second result", results[0], results[1])
	lines := r.seen()
	commontest.SameIn(t, "the process", []string{"initialize", "notifications/initialized"}, methods(lines))
	commontest.EqualIn(t, "the process got params", clientInit, string(wire.Lookup(lines[0], "params")))
}

func TestNotificationOfAClientStartsNoProcess(t *testing.T) {
	r := newRig(t, "normal")
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	commontest.EqualIn(t, "the box is not idle", true, r.idle())
	commontest.EqualIn(t, "a session is kept with nothing in it", 0, len(r.sessions))
}

func TestServerMayPingBeforeItAnswersInitialize(t *testing.T) {
	r := newRig(t, "pings first")
	r.result(r.call("1", "echo", "1"))
	commontest.EqualIn(t, "the ping was answered", `{"jsonrpc":"2.0","id":"are you there","result":{}}`, string(r.seen()[1]))
}

func TestRefusedHandshakeSaysWhatTheServerSaid(t *testing.T) {
	r := newRig(t, "refuses", func(s *Server) { s.Env["API_KEY"] = "sk-123456789" })
	f := r.fails(r.call(`"a"`, "echo", "1"), PhaseMCPInit, `server "fake": refused initialize: bad key *** (-32602)`)
	commontest.EqualIn(t, "code", wire.CodeInternal, f.Code)
	commontest.SameIn(t, "the server's own error", &ServerError{Code: -32602, Message: "bad key ***"}, f.ServerError)
	if s := r.state(t, Exited); s.Phase != PhaseMCPInit || s.Detail != f.Message {
		t.Errorf("the end of the process is told as %+v", s)
	}
	r.none(t, "") // the box ignores its later output
}

func TestRequestCancelledBeforeTheProcessIsReadyNeverReachesIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gate")
	r := newRig(t, "waits for the gate", func(s *Server) { s.Env[gate] = file })
	a, b := r.call("1", "echo", "1"), r.call("2", "echo", "2")
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if f := r.failure(a); f.ID != "1" || f.Code != -32800 {
		t.Errorf("it ends with id %s, code %d", f.ID, f.Code)
	}
	commontest.OK(t, os.WriteFile(file, nil, 0o600))
	r.result(b)
	commontest.SameIn(t, "the process", []string{"initialize", "notifications/initialized", "tools/call"}, methods(r.seen()))
}

func TestResponseToNothingThatTheProcessGotIsDropped(t *testing.T) {
	r := newRig(t, "answers too early")
	commontest.Equal(t, `{"echo":1}`, string(r.result(r.call("1", "echo", "1"))))
	r.result(r.callAs("s", "2", "say", strconv.Quote(`{"jsonrpc":"2.0","id":1,"result":{"other":1}}`+"\n"+done+"\n")))
	if got := r.result(r.deliver(`{"jsonrpc":"2.0","id":3,"method":"initialize"}`)); wire.Lookup(got, "serverInfo") == nil {
		t.Errorf("the client gets %s", got)
	}
}

// A client that offers a version without initialize, or one of the future, agrees on the newest
// version with it. A server that knows the offered version must not take it for that.
func TestInitializeOffersNoVersionThatHasNone(t *testing.T) {
	const of = `{"protocolVersion":"%s","capabilities":{},"clientInfo":{"name":"c","version":"1"}}`
	for name, c := range map[string]struct{ init, want string }{
		"an old one": {fmt.Sprintf(of, wire.V20241105), wire.V20241105}, "a modern one": {fmt.Sprintf(of, wire.V20260728), wire.V20251125},
		"of the future": {fmt.Sprintf(of, "2099-01-01"), wire.V20251125}, "nothing": {"", wire.V20251125}, "none": {`{}`, wire.V20251125},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleFrom(t, Server{}, func(t *testing.T, d dialogue) {
				d.as("s", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, func(of *frame.Deliver) { of.Init = json.RawMessage(c.init) })
				m, err := wire.Parse(d.drain()[0])
				if got, _ := wire.String(wire.Lookup(m.Params, "protocolVersion")); err != nil || m.Method != wire.MethodInitialize || got != c.want {
					t.Errorf("the process got %s, %v", m.Raw, err)
				}
			})
		})
	}
}

// takeLists is a server with lists of some pages. It says whether it has taken the message.
func (f *fake) takeLists(m wire.Message) bool {
	cursor, _ := wire.String(wire.Lookup(m.Params, "cursor"))
	version, _ := wire.String(wire.Lookup(m.Params, "protocolVersion"))
	switch m.Method {
	case wire.MethodInitialize:
		answer(m.ID, `{"protocolVersion":"`+version+`","capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{}},"serverInfo":{"name":"fake","version":"1"}}`)
	case wire.MethodToolsList:
		switch {
		case cursor == "":
			answer(m.ID, `{"tools":[{"name":"a"}],"nextCursor":"2"}`)
		case f.how == "lists more":
			answer(m.ID, `{"tools":[{"name":"b"},{"name":"c"}]}`)
		default:
			answer(m.ID, `{"tools":[{"name":"b"}]}`)
		}
	case wire.MethodResourcesList:
		if f.how == "lists and fails" {
			say(string(wire.ErrorResponse(m.ID, &wire.Error{Code: wire.CodeInternal, Message: "not now"})))
			return true
		}
		answer(m.ID, `{"resources":[]}`)
	case wire.MethodPromptsList:
		say(string(wire.ErrorResponse(m.ID, &wire.Error{Code: wire.CodeMethodNotFound, Message: "no"})))
	default:
		return false
	}
	return true
}

func surveys(s *Server) { s.Lists = true }

// told returns what the box says of a fresh process of a session.
func (r *rig) told(session, init string) frame.Status {
	r.t.Helper()
	r.as(session, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, func(d *frame.Deliver) { d.Ticket, d.Principal, d.Init = "", "p-"+session, json.RawMessage(init) })
	return find(r.t, r.recorder, "the lists of "+session, func(s frame.Status) bool { return s.Lists != "" && string(s.Session) == session })
}

const (
	plainClient = `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"a","version":"1"}}`
	richClient  = `{"protocolVersion":"2025-11-25","capabilities":{"sampling":{},"elicitation":{}},"clientInfo":{"name":"b","version":"1"}}`
	sameClient  = `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{},"sampling":{}},"clientInfo":{"name":"c","version":"2"}}`
)

func TestFreshProcessIsAskedForItsLists(t *testing.T) {
	r := newRig(t, "lists", surveys)
	plain, rich, same := r.told("1", plainClient), r.told("2", richClient), r.told("3", sameClient)
	var hashes map[string]string
	commontest.OK(t, json.Unmarshal(plain.Payload, &hashes))
	commontest.SameIn(t, "lists", []string{wire.MethodResourcesList, wire.MethodResourceTemplatesList, wire.MethodToolsList}, slices.Sorted(maps.Keys(hashes)))
	if plain.Ticket != "" || plain.Own || string(plain.Payload) != string(rich.Payload) || plain.Lists == rich.Lists || rich.Lists != same.Lists {
		t.Errorf("%+v, %+v and %+v", plain, rich, same)
	}
	if more := newRig(t, "lists more", surveys).told("1", plainClient); string(more.Payload) == string(plain.Payload) || more.Lists != plain.Lists {
		t.Error("a tool more on the second page makes no difference")
	}
}

func TestProcessThatKnowsItsPrincipalIsComparedWithItsOwn(t *testing.T) {
	r := newRig(t, "lists", surveys, func(s *Server) { s.Scope = ScopePrincipal })
	one, two := r.told("1", plainClient), r.told("2", plainClient)
	if !one.Own || !two.Own || one.Lists == two.Lists {
		t.Errorf("%+v and %+v", one, two)
	}
}

func TestProcessThatCannotListIsNotCompared(t *testing.T) {
	r := newRig(t, "lists and fails", surveys)
	for range 9 { // as many as there are lists, and more: it answers in turn
		r.result(r.deliverIn("s", "echo"))
	}
	told := slices.ContainsFunc(r.left(), func(v any) bool { s, ok := v.(frame.Status); return ok && s.Lists != "" })
	commontest.EqualIn(t, "the host is told of lists", false, told)
}

func TestStatelessProcessIsAskedForItsListsInItsOwnProtocol(t *testing.T) {
	r := newRig(t, "modern", surveys)
	r.told("s", plainClient)
	commontest.Contains(t, "it has", `"method":"tools/list","params":{"_meta":{`, string(r.result(r.deliver(`{"jsonrpc":"2.0","id":2,"method":"test/seen"}`))))
}

// A session may move to another definition of its server. Its client then gets, once, a
// list_changed for each list whose changes the server announces, and for tools that are held.
func TestClientOfASessionThatMovedHearsThatListsHaveChanged(t *testing.T) {
	for how, want := range map[string][]string{"announces": {"tools", "resources"}, "normal": {"tools"}} {
		r := newRig(t, how)
		for i, moved := range []bool{true, false, true} { // at the last one the process runs already
			r.result(r.as("s", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, i), func(d *frame.Deliver) { d.Moved, d.Held = moved, true }))
		}
		for _, kind := range slices.Concat(want, want) {
			commontest.EqualIn(t, how, `{"jsonrpc":"2.0","method":"notifications/`+kind+`/list_changed"}`, string(r.event(t, "").Raw))
		}
		r.none(t, "")
	}
}
