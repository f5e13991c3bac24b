package telemetry

import (
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/telemetry/otlp"
)

// tree is a request with the spans that it consists of.
type tree struct {
	name  string            // of the request, in all logs
	of    map[string]string // attributes of its parts
	spans []otlp.Span
}

func (r *tree) add(parent otlp.SpanID, part, name string, begin, end time.Time) otlp.SpanID {
	if end.Before(begin) {
		end = begin
	}
	id := otlp.SpanOf(r.name, part)
	r.spans = append(r.spans, otlp.Span{Trace: r.spans[0].Trace, ID: id, Parent: parent, Kind: otlp.Internal, Name: name, Begin: begin, End: end, Attributes: r.of})
	return id
}

// spansOf returns the spans of a request that has ended: the request, the start of the
// server if the request waited for it, the execution in the box, and each write of the
// box's events to the store.
func (t *Telemetry) spansOf(e journal.Event) []otlp.Span {
	spans := requestOf(e).Spans(t.options.Settings.Sampler)
	if spans == nil {
		return nil
	}
	r := tree{name: e.Trace, of: map[string]string{"dormouse.server": e.Name, "dormouse.tenant": e.Tenant}, spans: spans}
	root, begin := spans[0].ID, spans[0].Begin
	for i, s := range t.starts {
		if s.ready.Name == e.Name && (s.ready.Session == e.Session || s.ready.Session == "") && !s.ready.Time.Before(begin) && !s.woken.After(e.Time) {
			r.start(root, s, strconv.Itoa(i))
		}
	}
	r.box(root, t.parts[e.Trace])
	return r.spans
}

// start adds the start of a process, with its phases.
func (r *tree) start(root otlp.SpanID, s started, nth string) {
	ran := s.ready.Time.Add(-s.ready.Duration)
	wake := r.add(root, "wake "+nth, "wake", s.woken, s.ready.Time)
	if s.ready.Install > 0 {
		r.add(wake, "install "+nth, "install", ran.Add(-s.ready.Install), ran)
	}
	r.add(wake, "start "+nth, "start server", ran, s.ready.Time)
}

// box adds the execution in the box, and each write of the box's events to the store.
func (r *tree) box(root otlp.SpanID, parts []journal.Event) {
	var begun, ended time.Time
	for i, p := range parts {
		if p.Kind == journal.Deliver {
			if begun.IsZero() {
				begun = p.Time
			}
			continue
		}
		from := p.Time.Add(-p.Duration)
		r.add(root, "store "+strconv.Itoa(i), "store events", from, p.Time)
		if from.After(ended) {
			ended = from
		}
	}
	if !begun.IsZero() && !ended.IsZero() {
		r.add(root, "execute", "execute in box", begun, ended)
	}
}

func requestOf(e journal.Event) otlp.Request {
	return otlp.Request{
		Name: e.Trace, Parent: e.Parent, Method: e.Method, Tool: e.Tool, Protocol: e.Protocol, Server: e.Name, Tenant: e.Tenant,
		Client: e.Client, Session: e.Session, Code: e.Code, Reason: e.Reason, Failed: e.Reason != "" || e.Code != "", End: e.Time, Took: e.Duration,
	}
}
