package telemetry

import (
	"cmp"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/telemetry/otlp"
)

// tree is a request, and the spans that belong to it.
type tree struct {
	name  string            // name of the request in the logs
	of    map[string]string // attributes of the spans within the request
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

// spansOf returns the spans of a request that has ended. The first one is the request.
func (t *Telemetry) spansOf(e journal.Event) []otlp.Span {
	request, ok := requestSpan(e, t.settings.Sampler)
	if !ok {
		return nil
	}
	r := tree{name: e.Trace, of: map[string]string{"dormouse.server": e.Name, "dormouse.tenant": e.Tenant}, spans: []otlp.Span{request}}
	root, begin := request.ID, request.Begin
	for i, s := range t.starts {
		if s.ready.Name == e.Name && (s.ready.Session == e.Session || s.ready.Session == "") && !s.ready.Time.Before(begin) && !s.woken.After(e.Time) {
			r.start(root, s, strconv.Itoa(i))
		}
	}
	r.box(root, t.parts[e.Trace])
	return r.spans
}

// start adds a span for the start of a server's process, and its phases. The argument nth makes the
// spans' ids unique in the request.
func (r *tree) start(root otlp.SpanID, s started, nth string) {
	ran := s.ready.Time.Add(-s.ready.Duration)
	wake := r.add(root, "wake "+nth, "wake", s.woken, s.ready.Time)
	if s.ready.Install > 0 {
		r.add(wake, "install "+nth, "install", ran.Add(-s.ready.Install), ran)
	}
	r.add(wake, "start "+nth, "start server", ran, s.ready.Time)
}

// box adds a span for the execution in the box, and one for each write of the box's messages to
// the store.
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

// requestSpan returns the span of a request, with the attributes of OpenTelemetry's conventions
// for MCP. ok is false if the sampler excludes the request.
func requestSpan(e journal.Event, sampler otlp.Sampler) (s otlp.Span, ok bool) {
	trace, flags := otlp.TraceOf(e.Trace)
	client, parent, remote := otlp.Parent(e.Parent)
	if remote {
		trace, flags = client, e.Parent[53:]
	}
	if !sampler.Sampled(trace, flags) {
		return s, false
	}
	method := cmp.Or(e.Method, "tools/call")
	own := map[string]string{
		"mcp.method.name": method, "mcp.protocol.version": e.Protocol, "mcp.session.id": e.Session, "error.type": e.Code,
		"dormouse.server": e.Name, "dormouse.tenant": e.Tenant, "dormouse.trace": e.Trace, "dormouse.client": e.Client,
	}
	name := e.Method
	if e.Tool != "" {
		name = method + " " + e.Tool
		own["gen_ai.tool.name"], own["gen_ai.operation.name"] = e.Tool, "execute_tool"
	}
	if e.Code == "" && e.Reason != "" {
		own["error.type"] = "tool_error"
	}
	return otlp.Span{
		Trace: trace, ID: otlp.SpanOf(e.Trace, "request"), Parent: parent, Remote: remote, Kind: otlp.Server, Name: name,
		Begin: e.Time.Add(-e.Duration), End: e.Time, Attributes: own, Failed: e.Reason != "" || e.Code != "", Error: e.Reason,
	}, true
}
