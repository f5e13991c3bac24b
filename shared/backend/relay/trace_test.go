package relay_test

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// said is a line of a log.
type said struct {
	Msg, Trace, Type, Box, Server string
	Session                       storage.ID `json:"session_id"`
	Traces                        []string
	Spent                         bool
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
				log := &commontest.Lines{}
				c := countedOn(t, storagetest.NewMemory(), func(cfg *relayserver.Config) {
					cfg.Log, cfg.Meter = slog.New(slog.NewJSONHandler(log, nil)), biller{}
				})
				c.set = func(r *runner.Config) { r.Log = slog.New(slog.NewJSONHandler(log, nil)) }
				id := prepare(t, c)
				call, err := c.host.Accept(storage.WithTrace(t.Context(), "request-1"), caller, id, []wire.Message{parse(t, callWith(`{}`))}, false)
				commontest.OK(t, err)
				finish(t, call)
				down, up := 0, 0
				for line := range strings.Lines(log.String()) {
					var s said
					commontest.OK(t, json.Unmarshal([]byte(line), &s))
					if s.Msg == "deliver" && s.Trace == "request-1" && s.Session == id {
						down++
					}
					if s.Msg == "frame" && s.Type == "events" && len(s.Traces) == 1 && s.Traces[0] == "request-1" && s.Box == "t/s" && s.Server == "s" && s.Spent {
						up++
					}
				}
				if down != 1 || up != 1 {
					t.Errorf("the request is named in %d lines of the runner and %d of the relay function, want one each: %s", down, up, log)
				}
				c.quiet()
			})
		})
	}
}
