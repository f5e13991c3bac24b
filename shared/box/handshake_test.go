package box

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

const clientInit = `{"protocolVersion":"2025-06-18","capabilities":{"sampling":{}},"clientInfo":{"name":"c","version":"9"},"x":12345678901234567890}`

func TestFreshProcessIsInitializedAsTheClientWouldHave(t *testing.T) {
	t.Parallel()
	r := newRig(t, "normal")
	r.Deliver(Delivery{
		ID: "d", Session: "s", Ticket: "t", Init: json.RawMessage(clientInit), Level: "debug", Subscribed: []string{"file:///a", "file:///b"},
		Raw: []byte(`{"jsonrpc":"2.0","id":"first","method":"tools/list"}`),
	})
	r.result("d")
	lines := r.seen()
	want := []string{"initialize", "notifications/initialized", "logging/setLevel", "resources/subscribe", "resources/subscribe", "tools/list"}
	if diff := cmp.Diff(want, methods(lines)); diff != "" {
		t.Fatalf("the process got (-want +got):\n%s", diff)
	}
	if got := string(wire.Lookup(lines[0], "params")); got != clientInit {
		t.Errorf("initialize has params %s, want %s", got, clientInit)
	}
	if got := string(wire.Lookup(lines[2], "params", "level")); got != `"debug"` {
		t.Errorf("the log level is %s", got)
	}
	if got := string(wire.Lookup(lines[4], "params", "uri")); got != `"file:///b"` {
		t.Errorf("the second subscription is %s", got)
	}
	r.none(t, "") // clients do not see the answers to the box's own requests
	h := find(t, r.recorder, "the handshake", func(toldHandshake) bool { return true })
	if h.session != "s" || h.ticket != "t" || h.version != "2025-06-18" || string(wire.Lookup(h.result, "serverInfo", "name")) != `"fake"` {
		t.Errorf("the handshake is told as %+v %s", h, h.result)
	}
}

func TestProcessIsInitializedWithoutWordsOfTheClient(t *testing.T) {
	t.Parallel()
	for name, init := range map[string]string{"nothing": "", "no object": `[1]`, "no JSON": `{"a":`, "no version": `{}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "normal")
			r.Deliver(Delivery{ID: "d", Session: "s", Init: json.RawMessage(init), Raw: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)})
			r.result("d")
			if got := string(wire.Lookup(r.seen()[0], "params", "protocolVersion")); got != `"2025-11-25"` {
				t.Errorf("asked for version %s", got)
			}
		})
	}
}

func TestClientsInitializeIsAnsweredFromTheHandshake(t *testing.T) {
	t.Parallel()
	r := newRig(t, "normal")
	first := r.deliver(`{"jsonrpc":"2.0","id":"i1","method":"initialize","params":` + clientInit + `}`)
	e := r.final(t, first)
	if got := string(wire.Lookup(e.Raw, "id")); got != `"i1"` {
		t.Errorf("the first is answered under id %s", got)
	}
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	again := r.final(t, r.deliver(`{"jsonrpc":"2.0","id":9007199254740993,"method":"initialize","params":`+clientInit+`}`))
	if got := string(wire.Lookup(again.Raw, "id")); got != "9007199254740993" {
		t.Errorf("the second is answered under id %s", got)
	}
	if a, b := wire.Lookup(e.Raw, "result"), wire.Lookup(again.Raw, "result"); string(a) != string(b) || a == nil {
		t.Errorf("the results differ: %s and %s", a, b)
	}
	lines := r.seen()
	if diff := cmp.Diff([]string{"initialize", "notifications/initialized"}, methods(lines)); diff != "" {
		t.Errorf("the process got (-want +got):\n%s", diff)
	}
	if got := string(wire.Lookup(lines[0], "params")); got != clientInit {
		t.Errorf("the process got params %s, want the client's", got)
	}
}

func TestClientsHandshakeNotificationStartsNoProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, "normal")
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if _, idle := r.IdleSince(); !idle {
		t.Error("the box is not idle")
	}
	if len(r.sessions) != 0 {
		t.Error("a session is kept with nothing in it")
	}
}

func TestServerMayPingBeforeItAnswersInitialize(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pings first")
	r.result(r.call("1", "echo", "1"))
	if got := string(r.seen()[1]); got != `{"jsonrpc":"2.0","id":"are you there","result":{}}` {
		t.Errorf("the ping was answered %s", got)
	}
}

func TestNoiseBeforeAndAfterTheHandshakeIsSkipped(t *testing.T) {
	t.Parallel()
	r := newRig(t, "noisy")
	r.result(r.call("1", "echo", "1"))
	if got := r.Processes()[0].NoiseLines; got != 6 {
		t.Errorf("%d noise lines, want 6: two of them are in an array", got)
	}
	r.result(r.call("2", "say", `"oops\n{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{}}\r\n"`))
	if got := r.Counts().Noise; got != 7 {
		t.Errorf("the box counts %d noise lines, want 7", got)
	}
}

func TestManyAtOnceStartOneProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, "normal")
	done := make(chan struct{})
	for i := range 50 {
		go func() {
			n := strconv.Itoa(i)
			r.Deliver(Delivery{ID: storage.StreamID("m" + n), Session: "s", Raw: []byte(`{"jsonrpc":"2.0","id":` + n + `,"method":"tools/call","params":{"name":"pid"}}`)})
			done <- struct{}{}
		}()
	}
	for range 50 {
		<-done
	}
	pids := map[string]bool{}
	for i := range 50 {
		pids[string(r.result("m"+strconv.Itoa(i)))] = true
	}
	if len(pids) != 1 {
		t.Errorf("answers of processes %v, want one process", pids)
	}
}

func TestRefusedHandshakeSaysWhatTheServerSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t, "refuses", func(s *Server) { s.Env["API_KEY"] = "sk-123456789" })
	id, message, code, data := r.failure(r.call(`"a"`, "echo", "1"))
	if id != `"a"` || code != -32603 || message != `server "fake": refused initialize: bad key *** (-32602)` {
		t.Errorf("got id %s, code %d, message %q", id, code, message)
	}
	want := &ServerError{Code: -32602, Message: "bad key ***"}
	if data.Phase != PhaseMCPInit || data.Server != "fake" || data.Since.IsZero() {
		t.Errorf("data is %+v", data)
	}
	if diff := cmp.Diff(want, data.ServerError); diff != "" {
		t.Errorf("the server's own error (-want +got):\n%s", diff)
	}
	if s := r.state(t, Exited); s.Phase != PhaseMCPInit || s.Detail != message {
		t.Errorf("the end of the process is told as %+v", s)
	}
	r.none(t, "") // the box ignores its later output
}

func TestServerThatDoesNotAnswerInitializeIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"never answers", "silent"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, how, func(s *Server) { s.StartupTimeout = 200 * time.Millisecond })
			r.hurry()
			_, message, _, data := r.failure(r.call("1", "echo", "1"))
			if data.Phase != PhaseMCPInit || data.Limit != 0.2 || data.Setting != "startup_timeout_sec" || !strings.Contains(message, "within 200ms (startup_timeout_sec); it runs, and has said") {
				t.Errorf("got %q %+v", message, data)
			}
			r.state(t, Exited)
		})
	}
}

func TestRequestCancelledBeforeTheProcessIsReadyNeverReachesIt(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "gate")
	r := newRig(t, "waits for the gate", func(s *Server) { s.Env[gate] = file })
	a, b := r.call("1", "echo", "1"), r.call("2", "echo", "2")
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if id, _, code, _ := r.failure(a); id != "1" || code != -32800 {
		t.Errorf("it ends with id %s, code %d", id, code)
	}
	commontest.OK(t, os.WriteFile(file, nil, 0o600))
	r.result(b)
	if diff := cmp.Diff([]string{"initialize", "notifications/initialized", "tools/call"}, methods(r.seen())); diff != "" {
		t.Errorf("the process got (-want +got):\n%s", diff)
	}
}

func TestResponseToARequestTheProcessHasNotGotIsDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t, "answers too early")
	if got := string(r.result(r.call("1", "echo", "1"))); got != `{"echo":1}` {
		t.Errorf("got %s", got)
	}
	if got := r.Counts().Late; got != 1 {
		t.Errorf("%d late messages, want 1", got)
	}
}

func TestSecondAnswerToInitializeIsDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t, "normal")
	r.result(r.call("1", "say", `"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"other\":1}}\n{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{}}\n"`))
	if got := r.result(r.deliver(`{"jsonrpc":"2.0","id":2,"method":"initialize"}`)); wire.Lookup(got, "serverInfo") == nil {
		t.Errorf("the client gets %s", got)
	}
	if got := r.Counts().Late; got != 1 {
		t.Errorf("%d late messages, want 1", got)
	}
}

func TestProgressTokenOfTheClientsInitializeIsNotTakenForARequests(t *testing.T) {
	t.Parallel()
	r := newRig(t, "normal")
	r.Deliver(Delivery{
		ID: "d", Session: "s", Init: json.RawMessage(`{"protocolVersion":"2025-06-18","_meta":{"progressToken":3}}`),
		Raw: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`),
	})
	r.result("d")
	if got := string(wire.Lookup(r.seen()[0], "params", "_meta", "progressToken")); got != "1" {
		t.Errorf("the process gets token %s", got)
	}
}

// A client that offers a version without initialize, or one of the future, agrees on the newest
// version with it. A server that knows the offered version must not take it for that.
func TestInitializeOffersNoVersionThatHasNone(t *testing.T) {
	for offered, want := range map[string]string{"2024-11-05": "2024-11-05", wire.V20251125: wire.V20251125, "2026-07-28": wire.V20251125, "2099-01-01": wire.V20251125} {
		t.Run(offered, func(t *testing.T) {
			inBubbleFrom(t, Server{}, func(t *testing.T, d dialogue) {
				d.Deliver(Delivery{ID: "d", Session: "s", Init: json.RawMessage(`{"protocolVersion":"` + offered + `","capabilities":{},"clientInfo":{"name":"c","version":"1"}}`), Raw: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)})
				synctest.Wait()
				d.played.mu.Lock()
				m, err := wire.Parse(d.played.read[0])
				d.played.mu.Unlock()
				if got, _ := wire.String(wire.Lookup(m.Params, "protocolVersion")); err != nil || m.Method != wire.MethodInitialize || got != want {
					t.Errorf("for %s the process got %s, %v", offered, m.Raw, err)
				}
			})
		})
	}
}
