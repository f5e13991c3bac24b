package boot

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/meter"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// What an event has cost is billed to whom it was handled for.
func TestLineOfAnEventSaysForWhomItWas(t *testing.T) {
	whose := func(tenant string) session.Account {
		return session.Account{Tenant: tenant, Server: "counter", Session: "s1"}
	}
	for want, of := range map[string]func(string) session.Account{
		`"server":"counter","session_id":"s1",`: whose, `"tenant":"acme","units":{"invocations":1`: whose, `"tenant":"","units":{"invocations":1`: nil,
	} {
		var line bytes.Buffer
		f := &Function{Log: slog.New(slog.NewJSONHandler(&line, nil)), Meter: meter.New(meter.Options{})}
		if err := Event(f, of, func(context.Context, string) error { return nil })(t.Context(), "acme"); err != nil {
			t.Fatal(err)
		}
		if got := line.String(); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
