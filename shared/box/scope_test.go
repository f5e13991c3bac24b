package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// newCrowd is a box whose sessions share processes.
func newCrowd(t *testing.T, scope Scope) *rig {
	t.Helper()
	return newRig(t, "normal", func(s *Server) { s.Scope = scope })
}

func (r *rig) callAs(session, id, tool, arguments string, change ...func(*frame.Deliver)) string {
	return r.as(session, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":"t"}}}`, id, tool, arguments), change...)
}

func (r *rig) saysIn(session, id string, lines ...string) string {
	return r.callAs(session, id, "say", strconv.Quote(strings.Join(lines, "\n")+"\n"))
}

func (r *rig) hear(session, stream string) frame.Event {
	r.t.Helper()
	return find(r.t, r.recorder, session+" on "+strconv.Quote(stream), func(e frame.Event) bool { return string(e.Session) == session && string(e.Stream) == stream })
}

// heard lists the methods that a session has got on its standalone stream so far. It includes
// all events that came before the one the test has waited for.
func (r *rig) heard(session string) []string {
	var all []string
	for _, v := range r.past {
		if e, ok := v.(frame.Event); ok && string(e.Session) == session && e.Stream == "" {
			method, _ := wire.String(wire.Lookup(e.Raw, "method"))
			all = append(all, method)
		}
	}
	return all
}

// toServer lists the params of the messages with a method that the process has got.
func (r *rig) toServer(session, method string) []string {
	r.t.Helper()
	var all []string
	for _, l := range r.lines(session) {
		if name, _ := wire.String(wire.Lookup(l, "method")); name == method {
			all = append(all, string(wire.Lookup(l, "params")))
		}
	}
	return all
}

func withInit(capabilities string) func(*frame.Deliver) {
	return func(d *frame.Deliver) {
		d.Init = json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":` + capabilities + `,"clientInfo":{"name":"secretive","version":"1"}}`)
	}
}

const done = `{"jsonrpc":"2.0","id":$ID,"result":{}}`

func TestWhoSharesAProcess(t *testing.T) {
	for scope, want := range map[Scope][4]int{ // which process each session has
		ScopeSession: {0, 1, 2, 3}, ScopePrincipal: {0, 0, 2, 3}, ScopeShared: {0, 0, 0, 0},
	} {
		c := newCrowd(t, scope)
		pids := map[string]int{}
		for i, session := range []string{"ann/1", "ann/2", "bob/1", "/unknown"} {
			pid := string(c.result(c.callAs(session, "1", "pid", "0")))
			if _, ok := pids[pid]; !ok {
				pids[pid] = i
			}
			commontest.EqualIn(t, string(scope), want[i], pids[pid])
		}
	}
}

func TestEqualIdsAndTokensOfSessionsThatShareAreToldApart(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	hangs := c.callAs("ann/1", "1", "hang", "0")
	works := c.saysIn("bob/1", "1", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":$TOKEN,"progress":1}}`, done)
	progress := c.hear("bob/1", works)
	commontest.EqualIn(t, "progress with token", `"t"`, string(wire.Lookup(progress.Raw, "params", "progressToken")))
	commontest.EqualIn(t, "progress with token", "of bob/1", progress.Ticket)
	if e := c.hear("bob/1", works); !e.Final || string(wire.Lookup(e.Raw, "id")) != "1" {
		t.Errorf("the call ended with %s", e.Raw)
	}
	if open := c.Open(); len(open) != 1 || open[0].id != hangs || open[0].session.id != "ann/1" {
		t.Errorf("%d are open", len(open))
	}
}

func TestASessionCancelsItsOwnCallsOnly(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	c.result(c.callAs("ann/1", "0", "echo", "0")) // it is ready
	hangs, other := c.callAs("ann/1", "1", "hang", "0"), c.callAs("bob/1", "2", "hang", "0")
	const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`
	c.as("bob/1", cancel) // has no such call
	c.CloseStream("bob/1", storage.StreamID(hangs))
	if open := c.Open(); len(open) != 2 {
		t.Fatalf("%d are open", len(open))
	}
	c.as("ann/1", cancel)
	if e := c.hear("ann/1", hangs); !e.Final || string(wire.Lookup(e.Raw, "error", "code")) != strconv.Itoa(int(wire.CodeCancelled)) {
		t.Errorf("it ended with %s", e.Raw)
	}
	if open := c.Open(); len(open) != 1 || open[0].id != other {
		t.Errorf("%d are open", len(open))
	}
	commontest.EqualIn(t, "the server was told", 1, len(c.toServer("bob/1", wire.NotifyCancelled)))
}

func TestWhatBelongsToNoCallIsToldToEverySession(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	c.result(c.callAs("ann/1", "1", "echo", "0"))
	c.result(c.saysIn("bob/1", "1", `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, done))
	for _, session := range []string{"ann/1", "bob/1"} {
		e := c.hear(session, "")
		if method, _ := wire.String(wire.Lookup(e.Raw, "method")); method != wire.NotifyToolsChanged || e.Ticket != "of "+session {
			t.Errorf("%s heard %s with ticket %q", session, e.Raw, e.Ticket)
		}
	}
}

func TestAQuestionOfACallGoesToItsSessionAndNobodyElseAnswersIt(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	c.result(c.callAs("bob/1", "1", "echo", "0", withInit(`{"sampling":{}}`)))
	asks := c.callAs("ann/1", "1", "ask", "7", withInit(`{"sampling":{}}`))
	c.as("bob/1", `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`) // the newest, without a call
	question, _ := wire.String(wire.Lookup(c.hear("ann/1", asks).Raw, "id"))
	if open := c.Questions(); len(open) != 1 || len(open["ann/1"]) != 1 {
		t.Errorf("questions: %v", open)
	}
	c.Answer("bob/1", question, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%q,"result":{"by":"bob"}}`, question))
	c.Answer("ann/1", question, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%q,"result":{"by":"ann"}}`, question))
	commontest.EqualIn(t, "answered by", `"ann"`, string(wire.Lookup(c.result(asks), "answer", "result", "by")))
}

func TestAQuestionIsRefusedWhenItMayBeOfSeveralPrincipals(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	refused := func(asks string, want wire.Code) {
		t.Helper()
		commontest.EqualIn(t, "the server", strconv.Itoa(int(want)), string(wire.Lookup(c.result(asks), "answer", "error", "code")))
	}
	c.result(c.callAs("bob/1", "0", "echo", "0", withInit(`{"sampling":{}}`)))
	refused(c.callAs("cid/1", "1", "ask", "6", withInit(`{"roots":{}}`)), wire.CodeMethodNotFound) // its client cannot answer
	c.callAs("bob/1", "1", "hang", "0", withInit(`{"sampling":{}}`))
	refused(c.callAs("ann/1", "1", "ask", "7", withInit(`{"sampling":{}}`)), wire.CodeInternal)
	said := c.saysIn("ann/1", "2", `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"whose?"}}`, done)
	if e := c.hear("ann/1", said); !e.Final {
		t.Errorf("a log line that may be of several was told: %s", e.Raw)
	}
	// Both calls are of one principal, so the box chooses the newest call, as in one
	// session.
	c.as("bob/1", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	c.callAs("ann/2", "1", "hang", "0", withInit(`{"sampling":{}}`))
	asks := c.callAs("ann/1", "3", "ask", "8")
	if e := c.hear("ann/1", asks); e.Final {
		t.Errorf("refused: %s", e.Raw)
	}
}

func TestAQuestionOfNoCallGoesToTheNewestSessionThatCanAnswer(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	for _, session := range []string{"ann/1", "bob/1"} {
		c.result(c.callAs(session, "1", "echo", "0", withInit(`{"roots":{}}`)))
	}
	c.result(c.callAs("cid/1", "1", "echo", "0", withInit(`{"sampling":{}}`)))
	c.result(c.saysIn("cid/1", "2", done, `{"jsonrpc":"2.0","id":"r","method":"roots/list"}`))
	c.hear("bob/1", "")
	c.StopSession("bob/1")
	commontest.EqualIn(t, "questions", 0, len(c.Questions()))
	c.result(c.saysIn("cid/1", "3", done, `{"jsonrpc":"2.0","id":"s","method":"roots/list"}`))
	method, _ := wire.String(wire.Lookup(c.hear("ann/1", "").Raw, "method"))
	commontest.EqualIn(t, "ann was told", wire.MethodRootsList, method)
	commontest.EqualIn(t, "messages to who cannot answer", 0, len(c.heard("cid/1")))
}

// A client of 2026-07-28 gets questions only in the answer to its call, so without a call nobody
// could answer, and the process would wait.
func TestAQuestionOfNoCallIsNotForAModernClient(t *testing.T) {
	for _, scope := range []Scope{ScopeSession, ScopeShared} {
		c := newCrowd(t, scope)
		modern := func(d *frame.Deliver) { d.Init = bridge.Superset(nil) }
		c.result(c.callAs("ann/1", "1", "say", strconv.Quote(done+"\n"+`{"jsonrpc":"2.0","id":"r","method":"roots/list"}`+"\n"), modern))
		c.result(c.callAs("ann/1", "2", "echo", "0", modern))
		lines := c.lines("ann/1")
		at := slices.IndexFunc(lines, func(l json.RawMessage) bool { return string(wire.Lookup(l, "id")) == `"r"` })
		if at < 0 || wire.Lookup(lines[at], "error") == nil {
			t.Errorf("scope %v: the process got %s", scope, lines)
		}
	}
}

func TestAClientIsAskedOnlyForWhatItHasDeclared(t *testing.T) {
	for declared, want := range map[string][]bool{
		`{"roots":{},"sampling":null}`:         {false, false, false, false},
		`{"sampling":{},"elicitation":{}}`:     {true, false, true, false},
		`{"sampling":{"tools":{}}}`:            {true, true, false, false},
		`{"elicitation":{"form":{},"url":{}}}`: {false, false, true, true},
	} {
		s := &session{init: json.RawMessage(`{"capabilities":` + declared + `}`)}
		for i, m := range []wire.Message{
			{Method: wire.MethodCreateMessage},
			{Method: wire.MethodCreateMessage, Params: json.RawMessage(`{"tools":[]}`)},
			{Method: wire.MethodElicit, Params: json.RawMessage(`{"mode":"form"}`)},
			{Method: wire.MethodElicit, Params: json.RawMessage(`{"mode":"url"}`)},
		} {
			commontest.EqualIn(t, fmt.Sprintf("%s, %s %s", declared, m.Method, m.Params), want[i], s.can(m))
		}
	}
}

func TestTheLogOfASharedProcessIsAsVerboseAsAnybodyWants(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	at := func(level string) func(*frame.Deliver) { return func(d *frame.Deliver) { d.Level = level } }
	for _, ann := range []string{"error", "warning"} {
		c.result(c.as("ann/1", `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"`+ann+`"}}`, at(ann)))
		c.result(c.as("bob/1", `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"debug"}}`, at("debug")))
	}
	set := c.toServer("ann/1", wire.MethodSetLevel)
	commontest.EqualIn(t, "the server was set to", `{"level":"debug"}`, set[len(set)-1])
	c.result(c.callAs("ann/1", "2", "say", strconv.Quote(done+"\n"+`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`+"\n"), at("warning")))
	c.hear("bob/1", "")
	commontest.EqualIn(t, "messages that ann heard", 0, len(c.heard("ann/1")))
}

func TestAResourceStaysSubscribedForWhoStillWantsIt(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	const params = `"params":{"uri":"x:/a"}}`
	subscribed := func(d *frame.Deliver) { d.Level, d.Subscribed = "info", []string{"x:/a"} }
	c.result(c.as("ann/1", `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe",`+params, func(d *frame.Deliver) { d.Subscribed = []string{"x:/a"} }))
	commontest.Same(t, []string{`{"uri":"x:/a"}`}, c.toServer("ann/1", wire.MethodSubscribe))
	c.result(c.callAs("bob/1", "1", "echo", "0", subscribed)) // comes later, and brings what it has set
	commontest.Same(t, []string{`{"level":"info"}`}, c.toServer("ann/1", wire.MethodSetLevel))
	commontest.EqualIn(t, "unsubscribe was answered", `{"jsonrpc":"2.0","id":2,"result":{}}`, string(c.hear("ann/1", c.as("ann/1", `{"jsonrpc":"2.0","id":2,"method":"resources/unsubscribe",`+params)).Raw))
	c.result(c.saysIn("ann/1", "3", done, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:/a/b"}}`))
	c.hear("bob/1", "")
	if a := c.heard("ann/1"); len(a) > 0 {
		t.Errorf("ann heard %v", a)
	}
	if got := c.toServer("ann/1", wire.MethodUnsubscribe); len(got) > 0 {
		t.Errorf("the server was told %v", got)
	}
	c.StopSession("bob/1")
	commontest.Same(t, []string{`{"uri":"x:/a"}`}, c.toServer("ann/1", wire.MethodUnsubscribe))
	c.result(c.as("bob/2", `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe",`+params, subscribed)) // its first message
	commontest.EqualIn(t, "subscriptions of ann/1, bob/1 and bob/2", 3, len(c.toServer("ann/1", wire.MethodSubscribe)))
}

// A later client gets the answer of the process that is there, in its own version.
func TestAnOlderClientOfASharedProcessIsToldItsOwnVersion(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	for i, version := range []string{wire.V20250618, wire.V20241105, wire.V20251125} {
		want := min(version, wire.V20250618) // the process speaks that of the first client
		result := c.result(c.as(fmt.Sprintf("ann/%d", i), `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`))
		if got, _ := wire.String(wire.Lookup(result, "protocolVersion")); got != want {
			t.Errorf("a client of %s is told %s", version, got)
		}
	}
	told := c.toServer("ann/1", wire.MethodInitialize)
	if len(told) != 1 || wire.Lookup([]byte(told[0]), "capabilities", "sampling") == nil || strings.Contains(told[0], `"x"`) {
		t.Errorf("the server was told %s", told)
	}
}

func TestTheEndOfASessionLeavesTheProcessToTheOthers(t *testing.T) {
	c := newCrowd(t, ScopePrincipal)
	pid := string(c.result(c.callAs("ann/1", "1", "pid", "0")))
	hangs := c.callAs("ann/2", "1", "hang", "0")
	c.result(c.callAs("ann/1", "2", "echo", "0"))
	c.StopSession("ann/2")
	c.fails(hangs, PhaseBoxUnavailable, "")
	c.StopSession("nobody/1")
	commontest.EqualIn(t, "the process was ended", pid, string(c.result(c.callAs("ann/1", "3", "pid", "0"))))
	commontest.EqualIn(t, "the server was told", 1, len(c.toServer("ann/1", wire.NotifyCancelled)))
}

func TestAProcessHasABoundedNumberOfSessions(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	c.callAs("ann/1", "1", "hang", "0")
	for i := range maxMembers + 10 {
		c.as("bob/"+strconv.Itoa(i), `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups["shared"]
	if n := len(g.members); n != maxMembers || g.members[0].id != "ann/1" {
		t.Errorf("%d sessions, first %s", n, g.members[0].id)
	}
}

// acting gives the server a variable GITHUB_TOKEN with a template for the principal's
// secret github.
func acting(value string) func(*Server) {
	return func(s *Server) {
		s.Principal = []string{"github"}
		s.Env["GITHUB_TOKEN"] = value
	}
}

// actsFor calls a tool for a principal. The principal's secret for github is token, until a
// time.
func (r *rig) actsFor(principal, token string, until time.Time, id, tool string) string {
	return r.as(principal+"/1", `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"name":"`+tool+`","arguments":0}}`, func(d *frame.Deliver) {
		if token != "" {
			d.Secrets = map[string]storage.Secret{"github": {Value: token, Until: until}}
		}
	})
}

func (r *rig) variable(stream, name string) string {
	r.t.Helper()
	var env []string
	commontest.OK(r.t, json.Unmarshal(r.result(stream), &env))
	for _, pair := range env {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return "(not set)"
}

func TestAProcessHasTheTokenOfItsPrincipalOnly(t *testing.T) {
	for _, scope := range []Scope{ScopeSession, ScopePrincipal} {
		r := newRig(t, "normal", acting("Bearer ${principal:github}"), func(s *Server) { s.Scope = scope })
		for _, who := range []string{"ada", "bob", "ada"} {
			commontest.EqualIn(t, string(scope), "Bearer token-of-"+who, r.variable(r.actsFor(who, "token-of-"+who, time.Time{}, "1", "env"), "GITHUB_TOKEN"))
		}
	}
}

func TestANewTokenStartsAnIdleProcessAnew(t *testing.T) {
	r := newRig(t, "normal", acting("${principal:github}"))
	soon := time.Now().Add(time.Minute)
	first := r.result(r.actsFor("ada", "one", soon, "1", "pid"))
	commontest.EqualIn(t, "the same token starts another process", string(first), string(r.result(r.actsFor("ada", "one", soon, "2", "pid"))))
	hang := r.actsFor("ada", "one", soon, "3", "hang")
	commontest.EqualIn(t, "a process with a call in flight is replaced although its token is good", string(first), string(r.result(r.actsFor("ada", "two", soon.Add(time.Hour), "4", "pid"))))
	r.CloseStream("ada/1", storage.StreamID(hang))
	commontest.EqualIn(t, "the idle process was not started anew", "two", r.variable(r.actsFor("ada", "two", soon.Add(time.Hour), "5", "env"), "GITHUB_TOKEN"))
}

func TestAProcessWithATokenThatHasEndedGetsNoNewCall(t *testing.T) {
	r := newRig(t, "normal", acting("${principal:github}"))
	r.result(r.actsFor("ada", "one", time.Now().Add(-time.Second), "1", "pid"))
	hang := r.actsFor("ada", "one", time.Now().Add(-time.Second), "2", "hang")
	next := r.actsFor("ada", "two", time.Now().Add(time.Hour), "3", "env")
	r.none(t, next)
	r.CloseStream("ada/1", storage.StreamID(hang))
	commontest.Equal(t, "two", r.variable(next, "GITHUB_TOKEN"))
}

func TestATokenIsHiddenInWhatTheBoxPassesOn(t *testing.T) {
	r := newRig(t, "exits", func(s *Server) {
		s.Principal, s.Env["API_KEY"] = []string{"github"}, "${principal:github}"
	})
	f := r.failure(r.actsFor("ada", "gho_secret", time.Time{}, "1", "pid"))
	if shown := f.Message + f.Stderr; strings.Contains(shown, "gho_secret") || !strings.Contains(shown, "key ***") {
		t.Errorf("got %s", shown)
	}
}

func TestAServerThatReadsAFileIsNotStartedAnew(t *testing.T) {
	var place string
	saved := make(chan error, 1)
	k := &keeperHand{save: func(context.Context) error {
		_, err := os.Stat(filepath.Join(place, secretsFolder))
		saved <- err
		return nil
	}}
	r, _ := withKeeper(t, "normal", k, acting("${principal_file:github}"))
	file := r.variable(r.actsFor("ada", "one", time.Time{}, "1", "env"), "GITHUB_TOKEN")
	place = filepath.Dir(filepath.Dir(file))
	pid := r.result(r.actsFor("ada", "one", time.Time{}, "2", "pid"))
	commontest.EqualIn(t, "the process was started anew", string(pid), string(r.result(r.actsFor("ada", "two", time.Time{}, "3", "pid"))))
	value, err := os.ReadFile(file)
	commontest.OK(t, err)
	commontest.EqualIn(t, "the file has", "two", string(value))
	info, err := os.Stat(file)
	commontest.OK(t, err)
	commontest.EqualIn(t, "mode", 0o600, info.Mode().Perm())
	r.Halt(frame.Halt{Session: "ada/1", By: "ada"})
	commontest.EqualIn(t, "the snapshot has no secrets", true, errors.Is(<-saved, fs.ErrNotExist))
}

// A server can replace the folder of its secrets by a link. No file outside of its
// workspace may change.
func TestALinkLeadsNoTokenOutOfTheWorkspace(t *testing.T) {
	t.Parallel()
	outside, place := t.TempDir(), t.TempDir()
	folder, err := newFolder(provision.Launch{Workspace: place})
	commontest.OK(t, err)
	f := processSecrets{folder: folder}
	commontest.OK(t, os.Remove(folder))
	commontest.OK(t, os.Symlink(outside, folder))
	if err := f.write("github", "x"); err == nil {
		t.Error("a file was written")
	}
	commontest.Check(t, f.clear())
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
		t.Errorf("outside there is %v, %v", entries, err)
	}
}
