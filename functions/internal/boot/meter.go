package boot

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/dynamostore"
	"github.com/dormouse-mcp/dormouse/shared/meter"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// metricsSpace is the CloudWatch namespace of which log lines are metrics too: on AWS,
// where EnvMetrics names one.
func metricsSpace() string {
	space := os.Getenv(EnvMetrics)
	if space == "off" || os.Getenv(EnvRuntimeSocket) != "" || os.Getenv(envSAMLocal) == "true" {
		return ""
	}
	return space
}

// newMeter counts what this process uses.
func newMeter() *meter.Meter {
	memory, _ := strconv.ParseFloat(os.Getenv(envMemory), 64) // 0 for none: what template.yaml says
	return meter.New(meter.Options{MemoryMB: memory, Started: time.Now(), Metrics: metricsSpace()})
}

// counted returns the store, counted. DynamoDB says itself what it charges.
func counted(m *meter.Meter, s session.Store) session.Store {
	table, ok := s.(*dynamostore.Store)
	if !ok {
		return m.Store(s, nil)
	}
	return m.Store(s, func() meter.Stored {
		u := table.Usage()
		return meter.Stored{ReadUnits: u.ReadUnits, WriteUnits: u.WriteUnits, Polls: u.WaitUnits}
	})
}

// Event makes a handler of events leave a log line for each, with what it has cost.
// whose says for whom an event is handled (Tenant, Server and Session of an account);
// nil is for nobody.
func Event[E any](f *Function, whose func(E) session.Account, handle func(context.Context, E) error) func(context.Context, E) error {
	return func(ctx context.Context, e E) error {
		begun := time.Now()
		err := handle(ctx, e)
		var a session.Account
		var attrs []any
		if whose != nil {
			a = whose(e)
			attrs = append(attrs, "server", a.Server, "session_id", string(a.Session))
		}
		a.Over, a.Took, a.Code = session.OverEvent, time.Since(begun), session.CodeOf(err)
		attrs, level := append(attrs, "duration_ms", a.Took.Milliseconds()), slog.LevelInfo
		if err != nil {
			attrs, level = append(attrs, "code", a.Code, "error", err), slog.LevelError
		}
		f.Log.Log(ctx, level, "event", append(attrs, f.Meter.Spent(a)...)...)
		return err
	}
}
