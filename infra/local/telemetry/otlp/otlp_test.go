package otlp_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/telemetry/otlp"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestSettingsOfTheStandardVariables(t *testing.T) {
	for _, tt := range []struct {
		environ  string // lines
		endpoint string
		refused  string
	}{
		{environ: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", endpoint: "http://c:4318/v1/traces"},
		{environ: "OTEL_EXPORTER_OTLP_ENDPOINT=https://c/otlp/", endpoint: "https://c/otlp/v1/traces"},
		{environ: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c\nOTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://d/in", endpoint: "http://d/in"},
		{environ: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c\nOTEL_TRACES_EXPORTER=none"},
		{environ: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c\nOTEL_SDK_DISABLED=TRUE"},
		{environ: "OTEL_EXPORTER_OTLP_ENDPOINT=c:4318", refused: "OTEL_EXPORTER_OTLP_ENDPOINT is no URL"},
		{environ: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c\nOTEL_EXPORTER_OTLP_PROTOCOL=grpc", refused: `OTEL_EXPORTER_OTLP_PROTOCOL is "grpc"; Dormouse sends http/json`},
		{environ: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c\nOTEL_EXPORTER_OTLP_HEADERS=hunter22", refused: "OTEL_EXPORTER_OTLP_HEADERS: write key=value"},
		{environ: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c\nOTEL_EXPORTER_OTLP_TIMEOUT=1\nOTEL_EXPORTER_OTLP_TRACES_TIMEOUT=2s", refused: `OTEL_EXPORTER_OTLP_TRACES_TIMEOUT is "2s"`},
		{environ: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c\nOTEL_TRACES_SAMPLER=traceidratio\nOTEL_TRACES_SAMPLER_ARG=NaN", refused: `OTEL_TRACES_SAMPLER_ARG is "NaN"`},
	} {
		s, err := otlp.FromEnviron(strings.Split(tt.environ, "\n"), "dormouse")
		if tt.refused != "" {
			if err == nil || !strings.Contains(err.Error(), tt.refused) || strings.Contains(err.Error(), "hunter22") {
				t.Errorf("%s: %v", tt.environ, err)
			}
			continue
		}
		if s == nil {
			s = &otlp.Settings{}
		}
		if err != nil || s.Endpoint != tt.endpoint {
			t.Errorf("%s: %q, %v", tt.environ, s.Endpoint, err)
		}
	}
}

func TestSamplers(t *testing.T) {
	trace, _ := otlp.TraceOf("a request")

	for _, tt := range []struct {
		sampler           string
		alone, asked, not bool // without a parent, with one that is sampled, with one that is not
	}{
		{"", true, true, false},
		{"OTEL_TRACES_SAMPLER=parentbased_always_off", false, true, false},
		{"OTEL_TRACES_SAMPLER=always_on", true, true, true},
		{"OTEL_TRACES_SAMPLER=parentbased_traceidratio\nOTEL_TRACES_SAMPLER_ARG=0", false, true, false},
		{"OTEL_TRACES_SAMPLER=traceidratio", true, true, true},
	} {
		s, err := otlp.FromEnviron(append(strings.Split(tt.sampler, "\n"), "OTEL_EXPORTER_OTLP_ENDPOINT=http://c"), "dormouse")
		commontest.OK(t, err)
		got := [3]bool{s.Sampler.Sampled(trace, ""), s.Sampler.Sampled(trace, "01"), s.Sampler.Sampled(trace, "00")}
		commontest.EqualIn(t, tt.sampler, [3]bool{tt.alone, tt.asked, tt.not}, got)
	}
}

func TestExporterPosts(t *testing.T) {
	var answers []int
	var bodies []map[string]any
	var heads []http.Header
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		text, _ := io.ReadAll(r.Body)
		commontest.Check(t, json.Unmarshal(text, &body))
		bodies, heads = append(bodies, body), append(heads, r.Header)
		w.WriteHeader(answers[len(bodies)-1])
	}))
	defer collector.Close()
	s, err := otlp.FromEnviron([]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20hunter22,x-team=a",
		"OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test,service.name=other", "OTEL_SERVICE_NAME=mine",
	}, "dormouse")
	commontest.OK(t, err)
	delete(s.Resource, "host.name")
	s.Version = "v1"
	e := otlp.NewExporter(*s)
	at := time.Unix(1, 5)
	span := otlp.Span{Trace: otlp.TraceID{15: 1}, ID: otlp.SpanID{7: 2}, Kind: otlp.Server, Name: "tools/list", Begin: at, End: at.Add(1), Attributes: map[string]string{"b": "2", "a": "1", "none": ""}}
	answers = []int{http.StatusOK, http.StatusBadRequest}
	commontest.OK(t, e.Spans(t.Context(), []otlp.Span{span}))
	text := func(key, value string) map[string]any {
		return map[string]any{"key": key, "value": map[string]any{"stringValue": value}}
	}
	want := map[string]any{"resourceSpans": []any{map[string]any{
		"resource": map[string]any{"attributes": []any{text("deployment.environment.name", "test"), text("service.name", "mine")}},
		"scopeSpans": []any{map[string]any{
			"scope": map[string]any{"name": "github.com/dormouse-mcp/dormouse", "version": "v1"},
			"spans": []any{map[string]any{
				"traceId": "00000000000000000000000000000001", "spanId": "0000000000000002", "kind": 2.0, "name": "tools/list", "flags": 257.0,
				"startTimeUnixNano": "1000000005", "endTimeUnixNano": "1000000006", "attributes": []any{text("a", "1"), text("b", "2")},
			}},
		}},
	}}}
	commontest.Same(t, want, bodies[0])
	if heads[0].Get("Authorization") != "Bearer hunter22" || heads[0].Get("X-Team") != "a" || heads[0].Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", heads[0])
	}
	if err := e.Spans(t.Context(), []otlp.Span{span}); err == nil || !strings.Contains(err.Error(), "400") || len(bodies) != 2 {
		t.Errorf("a refusal after %d posts: %v", len(bodies), err)
	}
}
