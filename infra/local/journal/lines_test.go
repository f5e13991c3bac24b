package journal

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/logline"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
)

// told is a Lines with the events that it made from log lines.
type told struct {
	*Lines
	all []Event
}

func newTold(verbose bool) *told {
	r := &told{}
	r.Lines = NewLines(NewRecorder(func(e Event) { r.all = append(r.all, e) }), Options{
		Verbose: verbose,
		Hide:    func(s string) string { return strings.ReplaceAll(s, "hunter22", "***") },
		Tools:   func(tenant, server string) string { return map[string]string{"ada/mine": "3 tools"}[tenant+"/"+server] },
		Lists:   func(string, string, string) bool { return true },
		Places:  func(string, string) []string { return nil },
	})
	return r
}

// written passes the event of a log line to a Lines, and returns the line without secrets.
func written(l *Lines, msg string, attrs ...any) string {
	var out strings.Builder
	log := slog.New(slog.NewJSONHandler(&out, nil))
	log.Info(msg, attrs...) //nolint:sloglint // the message is part of the test
	e, _ := logline.Parse(out.String())
	l.Observe(e)
	out.Reset()
	observe.Log(log)(context.Background(), e)
	return out.String()
}

// function passes the event of a log line to a Lines.
func function(l *Lines, line string) {
	if e, ok := logline.Parse(line); ok {
		l.Observe(e)
	}
}

// events returns the events since the last time, without their times.
func (r *told) events() []Event {
	all := r.all
	r.all = nil
	return all
}

func wantEvents(t *testing.T, got []Event, want ...Event) {
	t.Helper()
	commontest.Same(t, want, got, cmpopts.IgnoreFields(Event{}, "Time"), cmpopts.EquateEmpty())
}

// Lines makes the events of a start from lines of two programs. The function that wakes
// the box names the client, and the runner names the steps.
func TestLinesOfAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTold(false)
		function(r.Lines, `{"msg":"work","server":"mine","session_id":"s","principal":"ada","client":"zed"}`)
		line := `{"msg":"process","server":"a lie","process":"shared","session_id":"s","pid":7,`
		r.Box("ada", "mine", line+`"state":"staging","phase":"dep_install","step":"installing x\u001b[2J (PyPI)"}`)
		time.Sleep(3 * time.Second)
		r.Box("ada", "mine", line+`"state":"staging","phase":"dep_install","step":"installed x (PyPI) in 3.0 s"}`)
		time.Sleep(time.Second)
		r.Box("ada", "mine", line+`"state":"started"}`)
		r.Box("ada", "mine", line+`"state":"ready","duration_ms":900}`)
		r.Box("ada", "mine", line+`"state":"ready","refused":"network: hunter22.test was refused"}`)
		r.Box("ada", "mine", line+`"state":"stopped"}`)
		of := func(kind string, change func(*Event)) Event {
			e := Event{Kind: kind, Name: "mine", PID: 7, Principal: "ada", Client: "zed", Session: "s", Process: "shared"}
			if change != nil {
				change(&e)
			}
			return e
		}
		wantEvents(t, r.events(),
			of(ServerStarting, nil),
			of(ServerInstalling, func(e *Event) { e.Detail = "installing x [2J (PyPI)" }),
			of(ServerReady, func(e *Event) { e.Install, e.Duration, e.Detail = 3*time.Second, 900*time.Millisecond, "3 tools" }),
			of(ServerRefused, func(e *Event) { e.Detail = "network: ***.test was refused" }),
			of(ServerStopped, nil),
		)
		r.Box("ada", "mine", line+`"state":"started"}`)
		r.Box("ada", "mine", line+`"state":"stopped","followed":true}`)
		r.Box("ada", "mine", line+`"state":"started"}`)
		r.Box("ada", "mine", line+`"state":"exited","phase":"mcp_init","why":"server \"mine\": knows hunter22\nmore"}`)
		wantEvents(t, r.events(), of(ServerStarting, nil), of(ServerFailed, func(e *Event) { e.Phase, e.Reason = "mcp_init", "knows ***" }))
		time.Sleep(time.Minute)
		r.Asleep("mine")
		wantEvents(t, r.events(), Event{Kind: ServerAsleep, Name: "mine", Duration: 64 * time.Second})
	})
}

func TestLinesOfCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTold(true)
		call := []any{"server", "mine", "session_id", "s", "rpc_method", "tools/call", "principal", "ada", "client", "zed", "tool", "look", "trace", "t"}
		want := Event{Kind: Call, Name: "mine", Principal: "ada", Client: "zed", Tool: "look", Session: "s", Trace: "t", Measured: Measured{Method: "tools/call"}}
		because := func(d time.Duration, reason string) Event {
			e := want
			e.Duration, e.Reason = d, reason
			return e
		}
		written(r.Lines, "request", append(call, "duration_ms", int64(842), "outcome", "done")...)
		kept := written(r.Lines, "request", append(call, "duration_ms", int64(31), "outcome", "failed", "why", "hunter22 is wrong")...)
		written(r.Lines, "request", append(call, "duration_ms", int64(31), "outcome", "failed")...)
		wantEvents(t, r.events(), because(842*time.Millisecond, ""), because(31*time.Millisecond, "*** is wrong"), because(31*time.Millisecond, "the tool reported an error"))
		if strings.Contains(kept, "hunter22") || !strings.Contains(kept, `"why":"*** is wrong"`) {
			t.Errorf("the log has a secret, or lacks the reason: %s", kept)
		}

		// Another line reports the end of the call: that of the client's next request, or
		// that of the function that stores the events. It may come before the call's own
		// line.
		written(r.Lines, "socket", append(call, "duration_ms", int64(0), "outcome", "open", "stream", "1")...)
		time.Sleep(time.Second)
		written(r.Lines, "frame", "server", "mine", "type", "events", "duration_ms", int64(2), "ended", []struct {
			Stream string `json:"stream"`
			Why    string `json:"why,omitempty"`
		}{{"1", ""}, {"2", "it died"}})
		function(r.Lines, `{"msg":"request","server":"mine","session_id":"s","principal":"ada","client":"zed","rpc_method":"tools/call","tool":"look","trace":"t","outcome":"open","stream":"2","duration_ms":5}`)
		written(r.Lines, "request", append(call, "duration_ms", int64(0), "outcome", "open", "stream", "3")...)
		time.Sleep(time.Minute)
		written(r.Lines, "request", "server", "mine", "principal", "ada", "stream", "3", "outcome", "failed", "why", "late")
		wantEvents(t, r.events(),
			because(time.Second, ""), Event{Kind: Frame, Name: "mine", Detail: "events", Duration: 2 * time.Millisecond},
			because(5*time.Millisecond, "it died"), because(time.Minute, "late"))

		// A request that continues a call reports it.
		written(r.Lines, "request", append(call, "duration_ms", int64(0), "outcome", "open", "stream", "4")...)
		commontest.Same(t, []string{"mine"}, r.Open())
		written(r.Lines, "request", append(call, "duration_ms", int64(7), "outcome", "done", "stream", "4")...)
		wantEvents(t, r.events(), because(7*time.Millisecond, ""))
		written(r.Lines, "request", append(call, "duration_ms", int64(0), "outcome", "open")...) // its client calls anew
		commontest.Equal(t, 0, len(r.Open()))
	})
}

func TestLinesThatSayNothingForPeople(t *testing.T) {
	r := newTold(false)
	for _, line := range []string{"", "plain", `{"msg":"request","rpc_method":"tools/list","principal":"ada","server":"mine"}`, `{"msg":"frame","type":"pull"}`, `{"msg":"request"`} {
		function(r.Lines, line)
		r.Box("ada", "mine", line)
	}
	wantEvents(t, r.events())
}

func TestARefusalIsToldOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTold(false)
		const line = `{"msg":"request","refused":true,"why":"mcp.example.com is not served: start with --public-url https://mcp.example.com"}`
		for range 3 {
			function(r.Lines, line)
		}
		told := r.events()
		wantEvents(t, told[1:], Event{Kind: RefusedAgain, Reason: told[0].Reason}, Event{Kind: RefusedAgain, Reason: told[0].Reason})
		r.all = told[:1]
		want := Event{Kind: Refused, Reason: "mcp.example.com is not served: start with --public-url https://mcp.example.com"}
		wantEvents(t, r.events(), want)
		time.Sleep(time.Minute)
		function(r.Lines, line)
		wantEvents(t, r.events(), want)
	})
}

// A refusal names its caller. Each caller is told, and the tool of a refused call stays.
func TestLinesOfRefusalsNameTheirCallers(t *testing.T) {
	r := newTold(false)
	for _, address := range []string{"192.0.2.7", "192.0.2.8", "192.0.2.7"} {
		function(r.Lines, `{"msg":"request","server":"","tenant":"","refused":true,"refusal":"forbidden","code":"forbidden","why":"not for memory","caller":{"server":"memory","tenant":"acme","principal":"ada","key":"k7","address":"`+address+`"}}`)
	}
	written(r.Lines, "api", "principal", "", "refused", true, "refusal", "unauthenticated", "why", "no", slog.Group("caller", "key", "k\n8", "address", "192.0.2.9"))
	written(r.Lines, "api", "principal", "ada")
	written(r.Lines, "request", "server", "mine", "tenant", "acme", "principal", "ada", "tool", "look", "outcome", "refused", "code", "busy", "refusal", "rate", "why", "too many", slog.Group("caller", "key", "k7", "address", "192.0.2.7"))
	of := func(kind, address string) Event {
		return Event{Kind: kind, Name: "memory", Tenant: "acme", Principal: "ada", Code: "forbidden", Reason: "not for memory", Measured: Measured{Sender: Sender{Key: "k7", Address: address, Refusal: "forbidden"}}}
	}
	wantEvents(t, r.events(), of(Refused, "192.0.2.7"), of(Refused, "192.0.2.8"), of(RefusedAgain, "192.0.2.7"),
		Event{Kind: Refused, Reason: "no", Measured: Measured{Sender: Sender{Key: "k 8", Address: "192.0.2.9", Refusal: "unauthenticated"}}},
		Event{Kind: Call, Name: "mine", Tenant: "acme", Principal: "ada", Tool: "look", Code: "busy", Reason: "too many", Measured: Measured{Sender: Sender{Key: "k7", Address: "192.0.2.7", Refusal: "rate"}}})
}

func TestRefusalsWithEverNewReasonsAreNotToldWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTold(false)
		tell := func() int {
			for i := range 3 * maxReasons {
				function(r.Lines, fmt.Sprintf(`{"msg":"request","refused":true,"why":"this API key is not for server %d"}`, i))
			}
			return len(slices.DeleteFunc(r.events(), func(e Event) bool { return e.Kind != Refused }))
		}
		commontest.EqualIn(t, "are told", maxReasons, tell())
		time.Sleep(time.Minute)
		commontest.EqualIn(t, "reasons that are told a minute later", maxReasons, tell())
	})
}

// Lines passes the parts of a request to its Trace, from events of functions and from lines
// of boxes.
func TestLinesOfTraces(t *testing.T) {
	var got []Event
	l := newTold(false)
	l.Trace = func(e Event) { got = append(got, e) }
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	want := []Event{
		{Time: at, Kind: Deliver, Name: "mine", Session: "s", Trace: "t"},
		{Time: at, Kind: Stored, Name: "mine", Session: "s", Trace: "t", Duration: 2 * time.Millisecond},
		{Kind: Request, Name: "mine", Session: "s", Trace: "t", Principal: "ada", Duration: 5 * time.Millisecond, Measured: Measured{Method: "tools/list", Parent: "p", Protocol: "2025-11-25", Wakes: 1, In: 7, Out: 9}},
	}
	l.Box("ada", "mine", `{"time":"2026-11-23T12:00:00Z","msg":"deliver","trace":"t","session_id":"s"}`)
	function(l.Lines, `{"time":"2026-11-23T12:00:00Z","msg":"frame","server":"mine","session_id":"s","traces":["t"],"duration_ms":2}`)
	function(l.Lines, `{"time":"2026-11-23T12:00:00Z","msg":"request","server":"mine","session_id":"s","trace":"t","principal":"ada","rpc_method":"tools/list","duration_ms":5,"traceparent":"p","protocol":"2025-11-25","units":{},"wakes":1,"bytes_in":7,"bytes_out":9}`)
	wantEvents(t, got, want...)
}
