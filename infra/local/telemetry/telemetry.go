// Package telemetry makes spans from journal events, and sends them to an OpenTelemetry collector.
// No request waits for it, and it does not use the store. Names are those of OpenTelemetry's
// conventions for MCP. Spans contain no arguments, results or message ids.
package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/telemetry/otlp"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Limits of what is kept in memory. What exceeds them is lost.
const (
	maxWaiting = 2_048            // ended requests that were not sent yet
	maxParts   = 10_000           // requests in progress whose events are kept
	maxPost    = 512              // spans in one post
	partAge    = 15 * time.Minute // how long these events are kept if their request does not end
)

// settle is how long Keep waits after the end of a request before it sends its spans. A runner's
// last log lines about the request may arrive after its end.
const settle = time.Second

// Telemetry collects events, and sends spans. Its methods are safe for concurrent use.
type Telemetry struct {
	settings otlp.Settings
	exporter *otlp.Exporter

	mu     sync.Mutex
	ended  []journal.Event            // ended requests, in the order of their ends
	parts  map[string][]journal.Event // events within requests, by the request's trace
	boxes  map[string]time.Time       // start times of boxes without a ready process, by the result of boxOf
	begun  map[string]time.Time       // start times of processes that are not ready yet, by the result of processOf
	starts []started                  // the newest starts that have ended, in the order of their ends
	lost   int
}

// started is a finished start of a server's process.
type started struct {
	woken time.Time // when the start of the box began, or if the box was up already, the start of the process
	ready journal.Event
}

// maxStarts is how many starts are kept, for the requests that waited for them.
const maxStarts = 1_000

// New returns a Telemetry. It sends nothing until Keep is called.
func New(s otlp.Settings) *Telemetry {
	return &Telemetry{
		settings: s, exporter: otlp.NewExporter(s),
		parts: map[string][]journal.Event{}, boxes: map[string]time.Time{}, begun: map[string]time.Time{},
	}
}

// Record takes an event from a [journal.Recorder]. It does no I/O.
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

// ready records a start that has ended.
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

// Keep sends spans every Settings.Every until ctx ends.
func (t *Telemetry) Keep(ctx context.Context, log *slog.Logger) {
	for storage.Rest(ctx, t.settings.Every) == nil {
		t.sendSpans(ctx, log, time.Now().Add(-settle))
	}
}

// Close sends the remaining spans. It stops when ctx ends.
func (t *Telemetry) Close(ctx context.Context, log *slog.Logger) {
	t.sendSpans(ctx, log, time.Now())
}

// sendSpans sends the spans of the requests that ended before a time.
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

// take removes the requests that ended before a time, and returns their spans. The result lost is
// how many requests were not recorded since the last call, because too many waited.
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
