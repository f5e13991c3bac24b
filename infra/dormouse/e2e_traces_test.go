//go:build e2e

package main_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/infra/local/lambda"
)

// The function programs and the runner write log lines about a call that carries the trace of
// its client. The function traces gets each line alone, as CloudWatch Logs might send them,
// the last one first. The collector shows one trace through all of them.
func TestE2ELogLinesOfFunctionsAreATrace(t *testing.T) {
	t.Parallel()
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	m := newMachine(t, servers{"one": nil}).asPrograms()
	m.start("--access", "keys")
	c := m.as(m.keys("create", "ada", "--server", "one"), "one")
	call := func(id, flags string) {
		answer, err := c.post(`{"jsonrpc":"2.0","id":"` + id + `","method":"tools/call","params":{"name":"echo","arguments":{"text":"never kept"},"_meta":{"traceparent":"00-` + trace + `-` + span + `-` + flags + `"}}}`)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.follow(t.Context(), answer, `"`+id+`"`); err != nil {
			t.Fatal(err)
		}
	}
	call("sampled", "01")
	call("not sampled", "00")
	m.end()
	lines, _ := m.log.lines()

	to := newCollector(t)
	pool := tracesFunction(t, to.URL)
	for i := len(lines) - 1; i >= 0; i-- {
		if failed := forward(t, pool, lines[i]); failed != nil {
			t.Fatalf("the function failed: %+v", failed)
		}
	}
	sent := to.sent()
	root := to.spans["tools/call echo"]
	if root.TraceID != trace || root.ParentSpanID != span || root.EndTimeUnixNano <= root.StartTimeUnixNano {
		t.Errorf("the call is %+v", root)
	}
	for _, part := range []string{"deliver to server", "store events"} {
		of := func(s collected) bool { return s.Name == part && s.TraceID == trace }
		if i := slices.IndexFunc(to.list, of); i < 0 || to.list[i].ParentSpanID != root.SpanID || to.list[i].EndTimeUnixNano < to.list[i].StartTimeUnixNano {
			t.Errorf("no %q is a part of %+v: %+v", part, root, to.list)
		}
	}
	if n := strings.Count(sent, `"name":"tools/call echo"`); n != 1 {
		t.Errorf("%d calls became spans, want the one that its client sampled", n)
	}
	for _, secret := range []string{"never kept", `"sampled"`, `"user.id"`} {
		if strings.Contains(sent, secret) {
			t.Errorf("a span has %s", secret)
		}
	}

	to.Close()
	if forward(t, pool, lines...) == nil {
		t.Error("spans are lost, and Lambda does not send the event again")
	}
}

func (c *collector) sent() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all
}

// tracesFunction runs the program of the function traces.
func tracesFunction(t *testing.T, collector string) *lambda.Pool {
	t.Helper()
	program := filepath.Join(t.TempDir(), "bootstrap")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../functions/traces")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pool, err := lambda.NewPool(lambda.PoolConfig{
		Functions: []lambda.FunctionConfig{{Name: "traces", Path: program, Timeout: time.Minute}},
		Env:       []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector},
		Output:    func(_, line string) { _, _ = os.Stderr.WriteString(line + "\n") },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close(context.WithoutCancel(t.Context())) })
	return pool
}

// forward sends log lines to the function, and returns how it failed.
func forward(t *testing.T, pool *lambda.Pool, lines ...string) *lambda.FunctionError {
	t.Helper()
	inv, err := pool.Invoke(t.Context(), "traces", logEvent(t, lines...))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inv.Body.Close() }()
	_, _ = io.Copy(io.Discard, inv.Body)
	return inv.Failed
}

// logEvent returns the event of a subscription of CloudWatch Logs.
func logEvent(t *testing.T, lines ...string) []byte {
	t.Helper()
	data := events.CloudwatchLogsData{MessageType: "DATA_MESSAGE"}
	for _, line := range lines {
		data.LogEvents = append(data.LogEvents, events.CloudwatchLogsLogEvent{Message: line})
	}
	raw, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	event, err := json.Marshal(events.CloudwatchLogsEvent{AWSLogs: events.CloudwatchLogsRawData{Data: base64.StdEncoding.EncodeToString(packed.Bytes())}})
	if err != nil {
		t.Fatal(err)
	}
	return event
}
