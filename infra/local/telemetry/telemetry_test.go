package telemetry_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/telemetry"
	"github.com/dormouse-mcp/dormouse/infra/local/telemetry/otlp"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// sent is what a collector got: spans as "parent > name", and all bodies.
type sent struct {
	spans  []string
	traces map[string]bool
	all    string
}

// collect sends events, and returns what the collector got.
func collect(t *testing.T, events ...journal.Event) (got sent) {
	t.Helper()
	got.traces = map[string]bool{}
	names := map[string]string{"": "", "00f067aa0ba902b7": "the client"}
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got.all += string(text)
		var body struct {
			ResourceSpans []struct {
				ScopeSpans []struct {
					Spans []struct{ TraceID, SpanID, ParentSpanID, Name string }
				}
			}
		}
		commontest.Check(t, json.Unmarshal(text, &body))
		for _, rs := range body.ResourceSpans {
			for _, s := range rs.ScopeSpans[0].Spans {
				names[s.SpanID] = s.Name
				got.spans = append(got.spans, names[s.ParentSpanID]+" > "+s.Name)
				got.traces[s.TraceID] = true
			}
		}
	}))
	defer collector.Close()
	settings, err := otlp.FromEnviron([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL}, "dormouse")
	commontest.OK(t, err)
	x := telemetry.New(*settings)
	for _, e := range events {
		x.Record(e)
	}
	x.Close(t.Context(), slog.New(slog.DiscardHandler))
	return got
}

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func call(at time.Time, change func(*journal.Event)) journal.Event {
	e := journal.Event{
		Time: at, Kind: journal.Call, Name: "mine", Tenant: "acme", Principal: "ada", Tool: "look", Session: "s", Trace: "t", Duration: 10 * time.Second,
		Measured: journal.Measured{Method: "tools/call", Parent: parent, Protocol: "2025-11-25"},
	}
	if change != nil {
		change(&e)
	}
	return e
}

func TestTraceOfACallThatWakesItsBox(t *testing.T) {
	end := time.Now().Add(-time.Minute)
	before := func(d time.Duration) time.Time { return end.Add(-d) }
	got := collect(t,
		journal.Event{Time: before(9 * time.Second), Kind: journal.BoxWake, Name: "mine", Tenant: "acme"},
		journal.Event{Time: before(8 * time.Second), Kind: journal.ServerStarting, Name: "mine", Tenant: "acme", Session: "s", Process: "p"},
		journal.Event{Time: before(3 * time.Second), Kind: journal.ServerReady, Name: "mine", Tenant: "acme", Session: "s", Process: "p", Duration: time.Second, Measured: journal.Measured{Install: 2 * time.Second}},
		journal.Event{Time: before(7 * time.Second), Kind: journal.Deliver, Name: "mine", Session: "s", Trace: "t"},
		journal.Event{Time: before(time.Second), Kind: journal.Stored, Name: "mine", Session: "s", Trace: "t", Duration: time.Millisecond},
		journal.Event{Time: before(time.Second), Kind: journal.Stored, Name: "mine", Session: "other", Trace: "other", Duration: time.Millisecond},
		call(end, nil),
	)
	want := []string{
		"the client > tools/call look", "tools/call look > wake", "wake > install", "wake > start server",
		"tools/call look > store events", "tools/call look > execute in box",
	}
	commontest.Same(t, want, got.spans)
	commontest.Same(t, map[string]bool{"4bf92f3577b34da6a3ce929d0e0e4736": true}, got.traces)
	for _, want := range []string{
		`"key":"gen_ai.tool.name","value":{"stringValue":"look"}`, `"key":"mcp.session.id","value":{"stringValue":"s"}`,
	} {
		commontest.Contains(t, "", want, got.all)
	}
}

func TestTracesBeginHereWithoutAParent(t *testing.T) {
	got := collect(t,
		call(time.Now(), func(e *journal.Event) { e.Parent, e.Reason = "", "no city" }),
		call(time.Now(), func(e *journal.Event) {
			e.Parent, e.Trace, e.Code, e.Reason = "broken", "t2", "unavailable", "try again"
		}),
		call(time.Now(), func(e *journal.Event) { e.Parent, e.Trace = parent[:53]+"00", "t3" }), // its client does not want it
		journal.Event{Time: time.Now(), Kind: journal.Request, Name: "mine", Trace: "t4", Measured: journal.Measured{Method: "tools/list"}},
	)
	commontest.Same(t, []string{" > tools/call look", " > tools/call look", " > tools/list"}, got.spans)
	commontest.EqualIn(t, fmt.Sprintf("traces %v", got.traces), 3, len(got.traces))
	for _, want := range []string{`"key":"error.type","value":{"stringValue":"tool_error"}`, `"key":"error.type","value":{"stringValue":"unavailable"}`, `"message":"no city"`} {
		commontest.Contains(t, "", want, got.all)
	}
	commontest.EqualIn(t, "the principal was sent", false, strings.Contains(got.all, "ada"))
}
