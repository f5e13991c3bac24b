package main

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/otlp"
)

// line holds the fields of a log line from which spans are made. A function or a runner
// wrote it.
type line struct {
	Time   time.Time `json:"time"`
	Msg    string    `json:"msg"`
	Trace  string    `json:"trace"`
	Server string    `json:"server"`
	MS     float64   `json:"duration_ms"`
	Traces []string  `json:"traces"` // of the requests in a frame
	Box    string    `json:"box"`
	ofRequest
}

// ofRequest holds the fields for the line of a client's request.
type ofRequest struct {
	Parent    string  `json:"traceparent"`
	Method    string  `json:"rpc_method"`
	Tool      string  `json:"tool"`
	Protocol  string  `json:"protocol"`
	Tenant    string  `json:"tenant"`
	Principal string  `json:"principal"`
	Client    string  `json:"client"`
	Session   string  `json:"session_id"`
	Code      string  `json:"code"`
	Outcome   string  `json:"outcome"`
	Why       string  `json:"why"`
	Wakes     int     `json:"wakes"`
	Start     float64 `json:"wake_function_ms"`
}

// spansOf returns the spans that one line describes, nil if it describes none or is no
// JSON. It needs no other line, because it computes ids from the name of the request,
// which all lines of the request have.
func (f *forwarder) spansOf(text string) []otlp.Span {
	var l line
	if json.Unmarshal([]byte(text), &l) != nil || l.Time.IsZero() {
		return nil
	}
	switch l.Msg {
	case "request", "socket":
		return f.request(l)
	case "frame":
		var all []otlp.Span
		for _, trace := range l.Traces {
			// A request may have several frames, so the time is part of the id.
			all = append(all, f.part(l, trace, "store events", "store "+strconv.FormatInt(l.Time.UnixNano(), 10))...)
		}
		return all
	case "deliver":
		return f.part(l, l.Trace, "deliver to server", "deliver")
	}
	return nil
}

func (l line) took() time.Duration { return time.Duration(l.MS * float64(time.Millisecond)) }

func (f *forwarder) request(l line) []otlp.Span {
	if l.Trace == "" || l.Method == "" && l.Tool == "" {
		return nil
	}
	r := otlp.Request{
		Name: l.Trace, Parent: l.Parent, Method: l.Method, Tool: l.Tool, Protocol: l.Protocol, Server: l.Server, Tenant: l.Tenant,
		Client: l.Client, Session: l.Session, Code: l.Code, Reason: l.Why, Failed: l.Code != "" || l.Outcome == "failed", End: l.Time, Took: l.took(),
	}
	if f.principals {
		r.User = l.Principal
	}
	spans := r.Spans(f.settings.Sampler)
	if spans == nil {
		return nil
	}
	if l.Wakes > 0 {
		spans[0].Attributes["dormouse.wakes"] = strconv.Itoa(l.Wakes)
	}
	if l.Start > 0 { // the function's process began for this request
		began := spans[0].Begin.Add(-time.Duration(l.Start * float64(time.Millisecond)))
		spans = append(spans, otlp.Span{
			Trace: spans[0].Trace, ID: otlp.SpanOf(l.Trace, "start function"), Parent: spans[0].ID, Kind: otlp.Internal, Name: "start function",
			Begin: began, End: spans[0].Begin, Attributes: map[string]string{"dormouse.server": l.Server},
		})
	}
	return spans
}

// part returns the span of a part of a request. The part ended when its line was written.
func (f *forwarder) part(l line, name, what, id string) []otlp.Span {
	trace, flags := otlp.TraceOf(name)
	if name == "" || !f.settings.Sampler.Sampled(trace, flags) {
		return nil
	}
	return []otlp.Span{{
		Trace: trace, ID: otlp.SpanOf(name, id), Parent: otlp.RequestSpan(name), Kind: otlp.Internal, Name: what,
		Begin: l.Time.Add(-l.took()), End: l.Time, Attributes: map[string]string{"dormouse.server": l.Server, "dormouse.box": l.Box},
	}}
}
