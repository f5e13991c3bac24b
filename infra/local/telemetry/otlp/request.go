package otlp

import (
	"maps"
	"time"
)

// Request is a finished request of a client, as its log line describes it. The names of
// attributes are those of OpenTelemetry's conventions for MCP.
type Request struct {
	Name     string // in all logs
	Parent   string // the traceparent of the client, "" for none
	Method   string // "" is the call of a tool
	Tool     string // "" if none is called
	Protocol string // version
	Server   string
	Tenant   string
	Client   string // the name that the client gave itself
	Session  string
	Code     string // one of our codes, if Dormouse refused the request or gave it up
	Reason   string // why it failed, for people
	Failed   bool
	End      time.Time
	Took     time.Duration
}

func (r Request) method() string {
	if r.Method == "" {
		return "tools/call"
	}
	return r.Method
}

// Kind returns the attributes that requests of a kind share, for spans and metrics.
func (r Request) Kind() map[string]string {
	a := map[string]string{
		"mcp.method.name": r.method(), "mcp.protocol.version": r.Protocol,
		"dormouse.server": r.Server, "dormouse.tenant": r.Tenant,
	}
	if r.Tool != "" {
		a["gen_ai.tool.name"], a["gen_ai.operation.name"] = r.Tool, "execute_tool"
	}
	switch {
	case r.Code != "":
		a["error.type"] = r.Code
	case r.Failed:
		a["error.type"] = "tool_error"
	}
	return a
}

// Spans returns the span of the request itself. The caller appends spans for its parts.
// Spans returns nil if the sampler leaves the request out.
func (r Request) Spans(s Sampler) []Span {
	trace, flags := TraceOf(r.Name)
	client, parent, remote := Parent(r.Parent)
	if remote {
		trace, flags = client, r.Parent[53:]
	}
	if !s.Sampled(trace, flags) {
		return nil
	}
	name := r.Method
	if r.Tool != "" {
		name = r.method() + " " + r.Tool
	}
	own := r.Kind()
	maps.Copy(own, map[string]string{"mcp.session.id": r.Session, "dormouse.trace": r.Name, "dormouse.client": r.Client})
	return []Span{{
		Trace: trace, ID: RequestSpan(r.Name), Parent: parent, Remote: remote, Kind: Server, Name: name,
		Begin: r.End.Add(-r.Took), End: r.End, Attributes: own, Failed: r.Failed, Error: r.Reason,
	}}
}

// RequestSpan returns the id of the span of a request, which is the parent of its parts.
func RequestSpan(name string) SpanID { return SpanOf(name, "request") }
