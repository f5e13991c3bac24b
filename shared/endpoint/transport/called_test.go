package transport_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// calledLine is what the log line of a request says of a call.
type calledLine struct {
	Principal, Client, Tool, Outcome, Why string
}

// logLine is the log line of a request, as far as tests read it.
type logLine struct {
	calledLine
	Level, Stream, Trace, Traceparent, Protocol, Server, Refusal string
	Refused                                                      bool
	Spent                                                        int
	Caller                                                       struct{ Server, Tenant, Principal, Key, Address string }
	Ended                                                        []observe.Ended
}

func (w *world) lastLine() (line logLine) {
	w.t.Helper()
	all := strings.Split(strings.TrimSpace(w.logged.String()), "\n")
	commontest.OK(w.t, json.Unmarshal([]byte(all[len(all)-1]), &line))
	return line
}

// The operator sees what a tool said of an error only where the operator is the caller.
func TestLogLineOfACallHasItsOutcome(t *testing.T) {
	const (
		reported = `{"content":[{"type":"text","text":"no city London\nat line 3"}],"isError":true}`
		refused  = `{"code":-32602,"message":"city London?"}`
		held     = `{"code":-32602,"message":"the tool \"c\" is held back","data":{"dormouse/held":"c"}}`
		account  = `{"content":[{"type":"text","text":"the server needs your access to GitHub, which you have not connected; open https://…"}],"isError":true,"_meta":{"dormouse/connect":true}}`
		elicited = `{"code":-32042,"message":"open https://…","data":{"dormouse/connect":true}}`
		similar  = `{"content":[{"type":"text","text":"the server needs your access to room 9"}],"isError":true}`
		died     = `{"code":-32603,"message":"server \"quiet\": exited with code 3","data":{"phase":"runtime"}}`
	)
	for name, tt := range map[string]struct {
		end          func(run)
		outcome      string
		why, ownsees string
	}{
		"result":                 {func(r run) { r.end(`{"content":[{"type":"text","text":"\"isError\":true"}]}`) }, "done", "", ""},
		"the tool reports":       {func(r run) { r.end(reported) }, "failed", "", "no city London"},
		"at the end of a stream": {func(r run) { r.say("a"); r.end(reported) }, "failed", "", "no city London"},
		"the server refuses":     {func(r run) { r.fail(refused) }, "failed", "the server answered with the error -32602", "city London?"},
		"with no word":           {func(r run) { r.fail(`{"code":-1,"message":""}`) }, "failed", "the server answered with the error -1", "the server answered with the error -1"},
		"the tool is held":       {func(r run) { r.fail(held) }, "failed", `the tool "c" is held back`, `the tool "c" is held back`},
		"an account is missing":  {func(r run) { r.end(account) }, "failed", "the caller has not connected an account at a third party that the server needs", "the caller has not connected an account at a third party that the server needs"},
		"an account to connect":  {func(r run) { r.fail(elicited) }, "failed", "the caller has not connected an account at a third party that the server needs", "the caller has not connected an account at a third party that the server needs"},
		"a server's own text":    {func(r run) { r.end(similar) }, "failed", "", "the server needs your access to room 9"},
		"the process dies":       {func(r run) { r.fail(died) }, "failed", `server "quiet": exited with code 3`, `server "quiet": exited with code 3`},
	} {
		for show, why := range map[bool]string{false: tt.why, true: tt.ownsees} {
			bubble(t, func(t *testing.T, w *world) {
				w.opts.ShowErrors = show
				w.backend.tool("look", tt.end)
				w.visit("quiet").call("look")
				commontest.SameIn(t, name, calledLine{"ada", "t", "look", tt.outcome, why}, w.lastLine().calledLine)
			})
		}
	}
}

// A program that stays can follow a call whose client does not come back.
func TestEndOfACallThatOutlivesItsRequestIsTold(t *testing.T) {
	for name, call := range map[string]func(w *world){
		"polls": func(w *world) { w.visit("quiet").call("look", "MCP-Protocol-Version", "2025-11-25") },
		"leaves": func(w *world) {
			q := w.visit("quiet").request("POST", callOf("look"))
			ctx, leave := context.WithCancel(w.t.Context())
			time.AfterFunc(time.Minute, leave)
			w.do(q.WithContext(ctx))
		},
		"task": func(w *world) { w.becomes(tasking("look")) },
		"is asked": func(w *world) {
			w.backend.tool("look", func(r run) {
				r.asks("q", elicit)
				time.Sleep(time.Hour)
				r.fail(`{"code":1,"message":"x","data":{"phase":"runtime"}}`)
			})
			w.do(asking("look").request()).required(w.t)
		},
	} {
		in(t, name, modern, func(t *testing.T, w *world) {
			w.backend.tool("look", func(r run) { time.Sleep(time.Hour); r.fail(`{"code":1,"message":"x","data":{"phase":"runtime"}}`) })
			w.opts.Outlive = func(work func(context.Context)) { go work(t.Context()) }
			call(w)
			begun := w.lastLine()
			commontest.Equal(t, "open", begun.Outcome)
			w.backend.running.Wait()
			synctest.Wait()
			commontest.Same(t, []observe.Ended{{Stream: storage.StreamID(begun.Stream), Why: "x"}}, w.lastLine().Ended)
		})
	}
}

func TestClientThatGoesIsNoErrorInTheLog(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.backend.tool("initialize", func(run) { time.Sleep(time.Hour) })
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		w.do(request("POST", "/quiet/mcp", initialize).WithContext(ctx))
		commontest.Equal(t, "WARN", w.lastLine().Level)
	})
}

// Every refusal names the key, its principal and tenant if the key was proven, the server
// that was asked for, and the address. No line has the key itself, and none lets a stranger
// choose a name for which bills and metrics count.
func TestLogLineOfARefusalNamesItsCaller(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		for _, tt := range []struct{ who, path, refusal, server, tenant, principal string }{
			{"elsewhere", "/pushy/mcp", "forbidden", "pushy", "acme", "ada"},
			{"revoked", "/pushy/mcp", "unauthenticated", "pushy", "acme", "ada"},
			{"expired", "/pushy/mcp", "unauthenticated", "pushy", "", ""}, // the store has forgotten it
			{"wrong", "/pushy/mcp", "unauthenticated", "pushy", "", ""},
			{"unknown", "/made-up/mcp", "unauthenticated", "made-up", "", ""},
			{"malformed", "/pushy/mcp", "unauthenticated", "pushy", "", ""},
			{"nobody", "/pushy/mcp", "unauthenticated", "pushy", "", ""},
		} {
			r := request("POST", tt.path, initialize)
			r.RemoteAddr = "192.0.2.7:4711"
			g.as(tt.who, r)
			got := g.lastLine()
			want := got.Caller
			want.Server, want.Tenant, want.Principal, want.Key, want.Address = tt.server, tt.tenant, tt.principal, "", "192.0.2.7"
			if parts := strings.Split(g.keys[tt.who], "_"); len(parts) == 3 {
				want.Key = parts[1]
				if strings.Contains(g.logged.String(), parts[2]) {
					t.Errorf("%s: the log has the key", tt.who)
				}
			}
			if got.Caller != want || !got.Refused || got.Refusal != tt.refusal || got.Server+got.Principal+got.Outcome != "" {
				t.Errorf("%s: got %+v, want the caller %+v", tt.who, got, want)
			}
		}
	})
}

// A call that a limit refuses is no failure.
func TestLogLineOfACallBeyondALimitSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		w.backend.err = storage.Errorf(storage.Busy, "too many calls").Because(&storage.Limited{Kind: "rate", Scope: "principal", After: time.Second})
		c.call("look")
		if got := w.lastLine(); got.Outcome != "refused" || got.Refusal != "rate" || got.Refused || got.Principal != "ada" || got.Caller.Address == "" {
			t.Errorf("%+v", got)
		}
		w.backend.err = errors.New("broken")
		c.call("look")
		if got := w.lastLine(); got.Outcome != "failed" || got.Refusal != "" {
			t.Errorf("%+v", got)
		}
	})
}

type told struct{ all []storage.Account }

func (m *told) Spent(a storage.Account) storage.Spent {
	m.all = append(m.all, a)
	return storage.Spent{Metrics: []slog.Attr{slog.Int("spent", len(m.all))}}
}

func TestARequestIsCountedWhenItHasEnded(t *testing.T) {
	document := func(*http.Request, string, []sessions.Caller) (string, any, error) {
		return wire.MediaJSON, "a document", nil
	}
	count := func(w *world, by func() http.Handler, r *http.Request) (storage.Account, *answer) {
		t.Helper()
		m := &told{}
		named(w).opts.Meter = m
		rec := newRecorder(t.Context())
		rec.serve(by(), r)
		if len(m.all) != 1 || w.lastLine().Spent != 1 {
			t.Fatalf("%d requests counted, and the line is %+v", len(m.all), w.lastLine())
		}
		got := m.all[0]
		got.Principal, got.Took = "", 0
		return got, rec.read()
	}
	w := newWorld(t)
	got, a := count(w, func() http.Handler { return w.handler() }, request("POST", "/known/mcp", initialize))
	commontest.SameIn(t, "initialize", storage.Account{Over: storage.OverREST, Tenant: "tenant", Server: "known", Session: got.Session, In: len(initialize), Out: len(a.body)}, got)
	commontest.EqualIn(t, "initialize is counted for no session", false, got.Session == "")
	got, a = count(w, func() http.Handler { return w.handler().Listing(document) }, request("GET", "/registry/v0.1/servers", ""))
	commontest.SameIn(t, "a listing", storage.Account{Over: storage.OverREST, Tenant: "tenant", Poll: true, Out: len(a.body)}, got)
	got, _ = count(w, func() http.Handler { return w.handler() }, request("GET", "/quiet/mcp", "", "Authorization", "Bearer nobody", sessionIs, "stolen"))
	if got.Tenant+got.Server+string(got.Session) != "" || got.Code != storage.Unauthenticated {
		t.Errorf("who is not let in is counted as %+v", got)
	}
}
