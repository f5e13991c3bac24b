// Package telemetry makes spans of what happens on this machine, and sends
// them to an OpenTelemetry collector. It reads events, which come from log lines, so a
// request waits for nothing and costs no operation of the store. Names are those of
// OpenTelemetry's conventions for MCP. Spans have no arguments, results or
// ids of messages.
package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/telemetry/otlp"
)

// Bounds of what is kept in memory. What exceeds them is lost, and a log line says so.
const (
	maxWaiting = 2_048            // requests that are not sent yet
	maxParts   = 10_000           // parts of requests that have not ended
	maxPost    = 512              // spans of one post
	partAge    = 15 * time.Minute // how long a part waits for the end of its request
)

// settle is how long Keep waits after the end of a request before it sends the request.
// The last log lines of the request may come later, from another program.
const settle = time.Second

// Options say how to make and where to send telemetry.
type Options struct {
	Settings otlp.Settings
	Version  string
}

// Telemetry collects events and sends them. The methods are safe for concurrent use.
type Telemetry struct {
	options  Options
	exporter *otlp.Exporter

	mu     sync.Mutex
	ended  []journal.Event            // requests, in the order of their ends
	parts  map[string][]journal.Event // parts of requests, by the trace of the request
	boxes  map[string]time.Time       // when a box was woken whose first process is not ready yet, by server and tenant
	begun  map[string]time.Time       // when a process began to start that is not ready yet, by server and process
	starts []started                  // the newest starts, the oldest first
	lost   int
}

// started is a start of a server's process.
type started struct {
	woken time.Time // when the box was started, or the process if the box was up
	ready journal.Event
}

// maxStarts is how many starts are remembered for the requests that waited for them.
const maxStarts = 1_000

// New returns a Telemetry. Call Keep to send.
func New(o Options) *Telemetry {
	return &Telemetry{
		options: o, exporter: otlp.NewExporter(o.Settings, o.Version),
		parts: map[string][]journal.Event{}, boxes: map[string]time.Time{}, begun: map[string]time.Time{},
	}
}

// Record takes an event. It is a printer of a [journal.Recorder], and does no I/O.
func (t *Telemetry) Record(e journal.Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Kind {
	case journal.Call, journal.Request:
		if len(t.ended) == maxWaiting {
			t.lost++
			return
		}
		t.ended = append(t.ended, e)
	case journal.Deliver, journal.Stored:
		if _, ok := t.parts[e.Trace]; ok || len(t.parts) < maxParts {
			t.parts[e.Trace] = append(t.parts[e.Trace], e)
		}
	case journal.BoxWake:
		if len(t.boxes) >= maxStarts {
			clear(t.boxes)
		}
		t.boxes[boxOf(e)] = e.Time
	case journal.ServerStarting:
		if len(t.begun) >= maxStarts {
			clear(t.begun)
		}
		t.begun[processOf(e)] = e.Time
	case journal.ServerReady:
		t.ready(e)
	}
}

func boxOf(e journal.Event) string     { return e.Name + "\x00" + e.Tenant }
func processOf(e journal.Event) string { return e.Name + "\x00" + e.Process }

// ready remembers a start that has ended.
func (t *Telemetry) ready(e journal.Event) {
	s := started{woken: e.Time.Add(-e.Duration), ready: e}
	if begun, ok := t.begun[processOf(e)]; ok {
		delete(t.begun, processOf(e))
		s.woken = begun
	}
	if woken, ok := t.boxes[boxOf(e)]; ok { // the first process of the box
		delete(t.boxes, boxOf(e))
		s.woken = woken
	}
	if len(t.starts) == maxStarts {
		t.starts = t.starts[1:]
	}
	t.starts = append(t.starts, s)
}

// Keep sends spans at intervals until ctx ends.
func (t *Telemetry) Keep(ctx context.Context, log *slog.Logger) {
	ticker := time.NewTicker(t.options.Settings.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			t.sendSpans(ctx, log, time.Now().Add(-settle))
		case <-ctx.Done():
			return
		}
	}
}

// Close sends the remaining spans, until ctx ends.
func (t *Telemetry) Close(ctx context.Context, log *slog.Logger) {
	t.sendSpans(ctx, log, time.Now())
}

// sendSpans sends the requests that ended before a time.
func (t *Telemetry) sendSpans(ctx context.Context, log *slog.Logger, before time.Time) {
	spans, lost := t.take(before)
	for len(spans) > 0 {
		n := min(len(spans), maxPost)
		if err := t.exporter.Spans(ctx, spans[:n]); err != nil {
			lost += n
			log.Warn("spans are lost: the collector did not take them", "spans", lost, "error", err)
			lost = 0
		}
		spans = spans[n:]
	}
	if lost > 0 {
		log.Warn("requests have no spans: too many ended at once", "requests", lost)
	}
}

// take returns the spans of the requests that ended before a time, and how many requests
// were lost.
func (t *Telemetry) take(before time.Time) (spans []otlp.Span, lost int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for n < len(t.ended) && !t.ended[n].Time.After(before) {
		spans = append(spans, t.spansOf(t.ended[n])...)
		delete(t.parts, t.ended[n].Trace)
		n++
	}
	t.ended = append([]journal.Event(nil), t.ended[n:]...)
	for trace, parts := range t.parts {
		if time.Since(parts[0].Time) > partAge {
			delete(t.parts, trace)
		}
	}
	lost, t.lost = t.lost, 0
	return spans, lost
}
