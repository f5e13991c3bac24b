package logline_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/logline"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

func TestALineIsTheRecordThatWroteIt(t *testing.T) {
	units := meter.Units{Requests: 2, ReadUnits: 1.5}
	wrote := slog.NewRecord(time.Date(2026, 11, 23, 12, 0, 0, 5, time.UTC), slog.LevelInfo, "request", 0)
	wrote.Add("server", "mine", "refused", true, "duration_ms", int64(5), "traces", []string{"t"}, "units", units, slog.Group("caller", "key", "k7"))
	var line strings.Builder
	if err := slog.NewJSONHandler(&line, nil).Handle(t.Context(), wrote); err != nil {
		t.Fatal(err)
	}
	read, ok := logline.Parse(line.String())
	if !ok || read.Message != wrote.Message || !read.Time.Equal(wrote.Time) {
		t.Fatalf("read %v, %v of %s", read, ok, line.String())
	}
	of := func(r slog.Record) map[string]any {
		all := map[string]any{}
		r.Attrs(func(a slog.Attr) bool {
			all[a.Key] = a.Value.Any()
			if a.Value.Kind() == slog.KindGroup {
				all[a.Key] = a.Value.String()
			}
			return true
		})
		delete(all, "level")
		delete(all, "time")
		delete(all, "msg")
		return all
	}
	if d := cmp.Diff(of(wrote), of(read)); d != "" {
		t.Errorf("attributes (-wrote +read):\n%s", d)
	}
}

func TestALineThatIsNoRecordIsRefused(t *testing.T) {
	for _, line := range []string{"", "panic: no", `["msg"]`, `{"msg":7}`, `{"server":"one"}`, `{"msg":"request"`} {
		if r, ok := logline.Parse(line); ok {
			t.Errorf("%q is %v", line, r)
		}
	}
}
