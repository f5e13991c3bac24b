package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/otlp"
)

// maxPost is the most spans of one post. Collectors limit the size of posts.
const maxPost = 512

// principalsOn makes spans name the principal of each request as user.id.
const principalsOn = "DORMOUSE_TELEMETRY_PRINCIPALS=on"

// forwarder turns log lines into spans and sends them. It keeps nothing between events.
type forwarder struct {
	settings   otlp.Settings
	exporter   *otlp.Exporter
	principals bool
}

// open reads the standard variables of OpenTelemetry.
func open(environ []string) (*forwarder, error) {
	s, err := otlp.FromEnviron(environ, "dormouse")
	if err != nil {
		return nil, err
	}
	if s == nil {
		s = &otlp.Settings{}
	}
	delete(s.Resource, "host.name") // that of this function, which is not where the spans come from
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
	}
	return &forwarder{*s, otlp.NewExporter(*s, version), slices.Contains(environ, principalsOn)}, nil
}

// forward sends the spans of one event of a subscription. After an error Lambda sends the
// event again; the spans have the same ids then.
func (f *forwarder) forward(ctx context.Context, e events.CloudwatchLogsEvent) error {
	data, err := e.AWSLogs.Parse()
	if err != nil {
		return fmt.Errorf("the event is not one of CloudWatch Logs: %w", err)
	}
	var spans []otlp.Span
	for _, l := range data.LogEvents {
		spans = append(spans, f.spansOf(l.Message)...)
	}
	for some := range slices.Chunk(spans, maxPost) {
		if err := f.exporter.Spans(ctx, some); err != nil {
			return err
		}
	}
	return nil
}
