package relay_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/relay/relayhost"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// lines is a log that the test can read.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// said returns the lines with a message.
func (l *lines) said(t *testing.T, message string) (all []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.text.Bytes()) {
		var v map[string]any
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		if v["msg"] == message {
			all = append(all, v)
		}
	}
	return all
}

// biller is a Meter that records the accounts.
type biller struct {
	mu   sync.Mutex
	told []session.Account
}

func (m *biller) Spent(a session.Account) []any {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = append(m.told, a)
	return []any{"spent", true}
}

func TestACallIsFollowedFromTheHostToTheRunnerAndBack(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, *counted) session.ID{"an awake box": working, "through the inbox": begun} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host, box := &lines{}, &lines{}
				c := countedOn(t, sessiontest.NewMemory(), func(cfg *relayhost.Config) {
					cfg.Log, cfg.Meter = slog.New(slog.NewJSONHandler(host, nil)), &biller{}
				})
				c.runnerLog = slog.New(slog.NewJSONHandler(box, nil))
				id := prepare(t, c)
				call, err := c.host.Accept(session.WithTrace(t.Context(), "request-1"), caller, id, []wire.Message{parse(t, callWith(`{}`))}, false)
				for err == nil && !call.Done() {
					_, err = call.Next(t.Context(), time.Now().Add(time.Minute))
				}
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				var stream any
				for _, line := range box.said(t, "deliver") {
					if line["trace"] == "request-1" && line["session_id"] == string(id) {
						stream = line["stream"]
					}
				}
				if stream == nil {
					t.Errorf("the runner does not name the request: %s", box.text.String())
				}
				var found []any
				for _, line := range host.said(t, "frame") {
					if line["type"] == "events" && line["traces"] != nil {
						found = append(found, line["traces"].([]any)...)
						if line["box"] != "t/s" || line["server"] != "s" || line["spent"] != true {
							t.Errorf("the line of the frame is %v", line)
						}
					}
				}
				if d := cmp.Diff([]any{"request-1"}, found); d != "" {
					t.Errorf("the relay function does not name the request (-want +got):\n%s", d)
				}
				time.Sleep(10 * time.Minute)
				c.life.Wait()
				c.work.Wait()
			})
		})
	}
}
