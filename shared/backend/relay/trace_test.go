package relay_test

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// said returns the lines of a log with a message.
func said(t *testing.T, log *commontest.Lines, message string) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(log.String()) {
		var v map[string]any
		commontest.OK(t, json.Unmarshal([]byte(line), &v))
		if v["msg"] == message {
			all = append(all, v)
		}
	}
	return all
}

// biller is a Meter that adds something to each line.
type biller struct{}

func (biller) Spent(storage.Account) storage.Spent {
	return storage.Spent{Metrics: []slog.Attr{slog.Bool("spent", true)}}
}

func TestACallIsFollowedFromTheHostToTheRunnerAndBack(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, *counted) storage.ID{"an awake box": working, "through the inbox": begun} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host, box := &commontest.Lines{}, &commontest.Lines{}
				c := countedOn(t, storagetest.NewMemory(), func(cfg *relayserver.Config) {
					cfg.Log, cfg.Meter = slog.New(slog.NewJSONHandler(host, nil)), biller{}
				})
				c.runnerLog = slog.New(slog.NewJSONHandler(box, nil))
				id := prepare(t, c)
				call, err := c.host.Accept(storage.WithTrace(t.Context(), "request-1"), caller, id, []wire.Message{parse(t, callWith(`{}`))}, false)
				commontest.OK(t, err)
				finish(t, call)
				var stream any
				for _, line := range said(t, box, "deliver") {
					if line["trace"] == "request-1" && line["session_id"] == string(id) {
						stream = line["stream"]
					}
				}
				if stream == nil {
					t.Errorf("the runner does not name the request: %s", box)
				}
				var found []any
				for _, line := range said(t, host, "frame") {
					if line["type"] == "events" && line["traces"] != nil {
						found = append(found, line["traces"].([]any)...)
						if line["box"] != "t/s" || line["server"] != "s" || line["spent"] != true {
							t.Errorf("the line of the frame is %v", line)
						}
					}
				}
				commontest.SameIn(t, "the relay function does not name the request", []any{"request-1"}, found)
				c.end()
			})
		})
	}
}
