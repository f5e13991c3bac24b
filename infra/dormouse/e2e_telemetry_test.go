//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// collector is an OpenTelemetry collector. It keeps the newest span of each name, and the
// text of all requests.
type collector struct {
	*httptest.Server
	mu    sync.Mutex
	spans map[string]collected
	all   string
}

type collected struct {
	TraceID, SpanID, ParentSpanID, Name string
	StartTimeUnixNano, EndTimeUnixNano  int64 `json:",string"`
}

func newCollector(t *testing.T) *collector {
	c := &collector{spans: map[string]collected{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body struct {
			ResourceSpans []struct{ ScopeSpans []struct{ Spans []collected } }
		}
		text, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(text, &body)
		}
		commontest.Check(t, err)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all += string(text)
		for _, rs := range body.ResourceSpans {
			for _, s := range rs.ScopeSpans[0].Spans {
				c.spans[s.Name] = s
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) has(names ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		if c.spans[name].SpanID == "" {
			return false
		}
	}
	return true
}

// A call with the trace of its client wakes a server. The collector shows the client's
// trace through function, start, box and store, who called which tool, and no argument.
func TestE2EACollectorShowsTheCallsOfATestRun(t *testing.T) {
	t.Parallel()
	to := newCollector(t)
	m := newMachine(t, servers{"one": nil})
	m.env = append(m.env, "OTEL_EXPORTER_OTLP_ENDPOINT="+to.URL, "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20hunter22",
		"OTEL_BSP_SCHEDULE_DELAY=100", "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	m.start("--access", "keys")
	c := m.as(m.keys("create", "ada", "--server", "one"), "one")
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	answer, err := c.post(`{"jsonrpc":"2.0","id":"never sent","method":"tools/call","params":{"name":"echo","arguments":{"text":"never kept"},"_meta":{"traceparent":"00-` + trace + `-` + span + `-01"}}}`)
	commontest.OK(t, err)
	if _, err := c.follow(t.Context(), answer, `"never sent"`); err != nil {
		t.Fatal(err)
	}
	m.eventually(patience, "the collector has the spans", func() bool {
		return to.has("initialize", "wake", "start server", "tools/call echo", "execute in box", "store events")
	})
	m.end()
	root, box := to.spans["tools/call echo"], to.spans["execute in box"]
	if root.TraceID != trace || root.ParentSpanID != span {
		t.Errorf("the call is %+v", root)
	}
	if box.TraceID != trace || box.ParentSpanID != root.SpanID || box.EndTimeUnixNano < box.StartTimeUnixNano {
		t.Errorf("the execution is %+v", box)
	}
	if start, wake := to.spans["start server"], to.spans["wake"]; start.ParentSpanID != wake.SpanID || wake.ParentSpanID == "" {
		t.Errorf("the start %+v is not in %+v", start, wake)
	}
	for key, value := range map[string]string{
		"gen_ai.tool.name": "echo", "mcp.method.name": "tools/call", "mcp.session.id": c.session, "dormouse.server": "one", "service.name": "dormouse",
	} {
		t.Run(key, func(t *testing.T) {
			if !strings.Contains(to.all, `"key":"`+key+`","value":{"stringValue":"`+value+`"}`) {
				t.Errorf("the collector has no %s %s", key, value)
			}
		})
	}
	for _, secret := range []string{"never kept", "never sent", "hunter22"} {
		if strings.Contains(to.all, secret) || strings.Contains(m.log.tail(10_000), secret) {
			t.Errorf("telemetry or the log has %q", secret)
		}
	}
}
