// Package otlp sends spans to an OpenTelemetry collector, by OTLP over HTTP as JSON. The official
// exporter would add twenty modules, including gRPC, to a program that also runs in each box.
package otlp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// TraceID is the id of a trace, and SpanID that of a span. The zero value is no valid id.
type (
	TraceID [16]byte
	SpanID  [8]byte
)

func (t TraceID) low() uint64 { return binary.BigEndian.Uint64(t[8:]) }

// MarshalText returns the id in hex.
func (t TraceID) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(t[:])), nil }

// MarshalText returns the id in hex, or "" for the zero value.
func (s SpanID) MarshalText() ([]byte, error) {
	if s == (SpanID{}) {
		return nil, nil
	}
	return []byte(hex.EncodeToString(s[:])), nil
}

// TraceOf returns the trace of a request, given its name in the logs. If the name is
// REQUEST.TRACEID-FLAGS, the client has sent a traceparent, and the result is its trace and flags.
// For any other name the id is a hash of the name, and flags is "". So all programs that know a
// request's name compute the same id.
func TraceOf(name string) (t TraceID, flags string) {
	if _, client, ok := strings.Cut(name, "."); ok && len(client) == 35 && client[32] == '-' {
		if n, err := hex.Decode(t[:], []byte(client[:32])); err == nil && n == len(t) && t != (TraceID{}) {
			return t, client[33:]
		}
	}
	sum := sha256.Sum256([]byte("trace " + name))
	return TraceID(sum[:16]), ""
}

// SpanOf returns the id of the span for a part of a request, given the request's name in the logs.
func SpanOf(name, part string) SpanID {
	sum := sha256.Sum256([]byte("span " + part + " " + name))
	return SpanID(sum[:8])
}

// Parent returns the ids in the value of a traceparent header. ok is false for "", and for any other
// value without two valid ids.
func Parent(traceparent string) (t TraceID, s SpanID, ok bool) {
	if len(traceparent) != 55 {
		return t, s, false
	}
	n, err := hex.Decode(t[:], []byte(traceparent[3:35]))
	m, err2 := hex.Decode(s[:], []byte(traceparent[36:52]))
	return t, s, err == nil && err2 == nil && n == len(t) && m == len(s) && t != TraceID{} && s != SpanID{}
}

// Kinds of spans in OTLP.
const (
	Internal = 1
	Server   = 2
)

// Span is a part of a trace. Attributes with an empty value are left out.
type Span struct {
	Trace      TraceID
	ID, Parent SpanID // Parent is zero for the root of a trace
	Remote     bool   // Parent is a span of the client
	Kind       int
	Name       string
	Begin, End time.Time
	Attributes map[string]string
	Error      string // why the span failed, for people; may be ""
	Failed     bool
}

// Exporter sends spans. It is safe for concurrent use.
type Exporter struct {
	settings Settings
	client   *http.Client
}

// NewExporter returns an exporter. It does not follow redirects, because they would send the headers
// to another address.
func NewExporter(s Settings) *Exporter {
	return &Exporter{s, &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

type object = map[string]any

// Spans sends spans. After an error they are lost; the error says whether the collector refused
// them or could not be reached.
func (e *Exporter) Spans(ctx context.Context, spans []Span) error {
	if len(spans) == 0 {
		return nil
	}
	all := make([]object, 0, len(spans))
	for _, s := range spans {
		o := object{
			"traceId": s.Trace, "spanId": s.ID, "name": s.Name, "kind": s.Kind, "attributes": attributes(s.Attributes),
			"startTimeUnixNano": nanos(s.Begin), "endTimeUnixNano": nanos(s.End),
		}
		// Bit 8 (0x100) means that bit 9 is valid. Bit 9 (0x200) means that the parent span
		// belongs to another program.
		o["flags"] = 0x101
		if s.Parent != (SpanID{}) {
			o["parentSpanId"] = s.Parent
			if s.Remote {
				o["flags"] = 0x301
			}
		}
		if s.Failed {
			o["status"] = object{"code": 2, "message": s.Error}
		}
		all = append(all, o)
	}
	return e.post(ctx, object{"resourceSpans": []object{{
		"resource":   object{"attributes": attributes(e.settings.Resource)},
		"scopeSpans": []object{{"scope": object{"name": "github.com/dormouse-mcp/dormouse", "version": e.settings.Version}, "spans": all}},
	}}})
}

// nanos formats a time as OTLP does: 64-bit integers are strings in JSON.
func nanos(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

func attributes(of map[string]string) []object {
	all := make([]object, 0, len(of))
	for _, key := range slices.Sorted(maps.Keys(of)) {
		if of[key] != "" {
			all = append(all, object{"key": key, "value": object{"stringValue": of[key]}})
		}
	}
	return all
}

// post sends a body to the endpoint.
func (e *Exporter) post(ctx context.Context, body object) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, e.settings.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.settings.Endpoint, bytes.NewReader(text))
	if err != nil {
		return err
	}
	for key, values := range e.settings.Headers {
		req.Header[key] = values
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)) // net/http reuses a connection only if the body was read
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s answered %s", req.URL.Redacted(), res.Status)
	}
	return nil
}
