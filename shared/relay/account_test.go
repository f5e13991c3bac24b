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

	"github.com/dormouse-mcp/dormouse/shared/relay"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// lines is a log that can be read.
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

// teller remembers what it was told of.
type teller struct {
	mu   sync.Mutex
	told []session.Account
}

func (m *teller) Spent(a session.Account) []any {
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
				c := countedOn(t, sessiontest.NewMemory(), func(cfg *relay.Config) {
					cfg.Log, cfg.Meter = slog.New(slog.NewJSONHandler(host, nil)), &teller{}
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

func TestNobodyIsBilledForAFrameOfSomebodyElse(t *testing.T) {
	m := &teller{}
	h := relay.NewHandler(func() relay.Config {
		c := configOf(t, sessiontest.NewMemory())
		c.Meter = m
		return c
	}())
	for _, f := range []relay.Frame{
		{Type: relay.Hello, Box: "victim/files", Gen: 1, Runner: "r", Link: 1, Token: "guessed"},
		{Type: relay.Pull, Box: "victim/files", Gen: 1, Runner: "r", N: 1},
		{Type: relay.Events, Box: "victim/files", Gen: 1, Session: "s", Seq: 1, Items: []relay.EventItem{{Ticket: "made up", Lens: []int{2}}}, Payload: []byte("{}")},
	} {
		_, _ = h.Frame(t.Context(), "c", relay.Encode(f)) // refused, in one way or another
	}
	if len(m.told) != 3 {
		t.Fatalf("%d frames were counted, want 3", len(m.told))
	}
	for _, a := range m.told {
		if a.Tenant != "" || a.Server != "" || a.Session != "" || a.In == 0 {
			t.Errorf("a frame nobody was asked for is counted as %+v", a)
		}
	}
}

func TestABoxIsBilledForWhatItAsksOfSnapshotsWhateverTheAnswer(t *testing.T) {
	a := newAsylum(t)
	a.keeping()
	m := &teller{}
	a.config.Meter = m
	if got := a.asks(relay.Frame{Type: relay.Get, Owner: "s1"}); got.Refused != session.NotFound {
		t.Fatalf("answered with %+v", got)
	}
	a.asks(relay.Frame{Type: relay.Get, Owner: "s1", Box: asylumBox, Gen: asylumGen, Runner: "made up"})
	if len(m.told) != 2 || m.told[0].Tenant != "t" || m.told[0].Server != "s" || m.told[1].Tenant != "" {
		t.Errorf("counted as %+v", m.told)
	}
}

func TestABoxNamesNoSessionInTheBillThatItHasNoTicketOf(t *testing.T) {
	a := newAsylum(t)
	m := &teller{}
	a.config.Meter = m
	h := relay.NewHandler(a.config)
	said := []byte(`{"jsonrpc":"2.0","method":"x"}`)
	for _, f := range []relay.Frame{
		{Type: relay.Status, Session: "made up", Process: "p", Phase: "ready"},
		{Type: relay.Pull, Runner: "r", N: 1, Session: "made up"},
		{Type: relay.Taken, Session: "made up", Tickets: []string{a.config.Sealer.Seal(a.address(), asylumGen)}},
		{Type: relay.Events, Session: "s1", Seq: 1, Items: []relay.EventItem{{
			Ticket: a.config.Sealer.Seal(a.address(), asylumGen), Stream: a.stream, First: 1, Lens: []int{len(said)},
		}}, Payload: said},
	} {
		f.Box, f.Gen = asylumBox, asylumGen
		if _, err := h.Frame(t.Context(), "c", relay.Encode(f)); err != nil {
			t.Fatal(err)
		}
	}
	var got []session.ID
	for _, told := range m.told {
		if told.Tenant != "t" {
			t.Errorf("counted as %+v", told)
		}
		got = append(got, told.Session)
	}
	if d := cmp.Diff([]session.ID{"", "", "s1", "s1"}, got); d != "" {
		t.Errorf("sessions (-want +got):\n%s", d)
	}
}
