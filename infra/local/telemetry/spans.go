package telemetry

import (
	"maps"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/otlp"
)

// tree is a request with the spans that it consists of.
type tree struct {
	name  string // of the request, in all logs
	trace otlp.TraceID
	of    map[string]string // attributes of every span
	spans []otlp.Span
}

func (r *tree) add(parent otlp.SpanID, part, name string, begin, end time.Time) otlp.SpanID {
	if end.Before(begin) {
		end = begin
	}
	id := otlp.SpanOf(r.name, part)
	r.spans = append(r.spans, otlp.Span{Trace: r.trace, ID: id, Parent: parent, Kind: otlp.Internal, Name: name, Begin: begin, End: end, Attributes: r.of})
	return id
}

// spansOf returns the spans of a request that has ended: the request, the start that it
// waited for, its execution in the box, and the writes of what the box said.
func (t *Telemetry) spansOf(e journal.Event) []otlp.Span {
	r := tree{name: e.Trace, trace: otlp.TraceOf(e.Trace), of: map[string]string{"dormouse.server": e.Name, "dormouse.tenant": e.Tenant}}
	trace, client, remote := otlp.Parent(e.Parent)
	if remote {
		r.trace = trace
	} else {
		e.Parent = ""
	}
	if !t.options.Settings.Sampler.Sampled(r.trace, e.Parent) {
		return nil
	}
	begin := e.Time.Add(-e.Duration)
	root := r.add(client, "request", nameOf(e), begin, e.Time)
	first := &r.spans[0]
	first.Kind, first.Remote, first.Failed, first.Error = otlp.Server, remote, failed(e), e.Reason
	first.Attributes = attributesOf(e, t.options.Principals)
	maps.Copy(first.Attributes, r.of)
	first.Attributes["mcp.session.id"], first.Attributes["dormouse.trace"], first.Attributes["dormouse.client"] = e.Session, e.Trace, e.Client

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

// box adds the execution in the box, and the writes of what the box said.
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

func nameOf(e journal.Event) string {
	if e.Tool == "" {
		return e.Method
	}
	return methodOf(e) + " " + e.Tool
}

// methodOf returns the method of a request; one without is the call of a tool, whose line
// named none.
func methodOf(e journal.Event) string {
	if e.Method == "" {
		return "tools/call"
	}
	return e.Method
}

func failed(e journal.Event) bool { return e.Reason != "" || e.Code != "" }

// attributesOf returns the attributes that are good for spans and metrics alike.
func attributesOf(e journal.Event, principals bool) map[string]string {
	a := map[string]string{"mcp.method.name": methodOf(e), "mcp.protocol.version": e.Protocol}
	if e.Tool != "" {
		a["gen_ai.tool.name"], a["gen_ai.operation.name"] = e.Tool, "execute_tool"
	}
	if principals {
		a["user.id"] = e.Principal
	}
	switch {
	case e.Code != "":
		a["error.type"] = e.Code
	case failed(e):
		a["error.type"] = "tool_error"
	}
	return a
}
