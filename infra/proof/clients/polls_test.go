//go:build clients

package clients

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// poller is an SDK as a client that polls. prepare returns the command without --url and
// --plan. sharedPace says that the client has one retry for all its streams.
type poller struct {
	name       string
	prepare    func(*testing.T) []string
	sharedPace bool
}

func allPollers() []poller {
	return []poller{
		{"go-1.8.0", prepareGo, false},
		{"ts-1.32.2", func(t *testing.T) []string { return prepareTypeScript(t, "ts", "polls.mjs") }, true},
		{"ts-2.4.0", func(t *testing.T) []string { return prepareTypeScript(t, "ts2", "polls.mjs") }, true},
		{"py-1.30.0", func(t *testing.T) []string { return preparePython(t, "requirements-1.30.0.txt", "polls.py") }, false},
		{"py-2.3.0", func(t *testing.T) []string { return preparePython(t, "requirements-2.3.0.txt", "polls.py") }, false},
	}
}

// step is one call of a plan, in the form that the programs read.
type step struct {
	Check     string         `json:"check"`
	Tool      string         `json:"tool"`
	Arguments map[string]any `json:"arguments"`
	Until     string         `json:"until,omitempty"`
}

// polled is the result of a step, in the form that the programs print.
type polled struct {
	Client   string    `json:"client"`
	Check    string    `json:"check"`
	Text     string    `json:"text"`
	Progress []float64 `json:"progress"`
	Logs     []string  `json:"logs"`
	Odd      []string  `json:"odd"`
	Error    string    `json:"error"`
}

// The default limits are a retry of 1 s and a hold of 25 s. Here they are milliseconds, so
// that hundreds of polls take seconds. All other limits stay.
const pollPace, pollHold = 4 * time.Millisecond, 5 * time.Millisecond

func TestCallsEndInTheirResultHoweverManyPollsTheyTake(t *testing.T) {
	plan := []step{
		pollStep(0, ""), pollStep(1, ""), pollStep(12, ""), pollStep(250, ""),
		// During each of these calls the store does not answer for three polls.
		pollStep(9, "Load"), pollStep(10, "Wait"), pollStep(11, "Tail"),
	}
	for _, p := range startAll(t, sessions.Limits{Pace: pollPace, Hold: pollHold}, plan) {
		t.Run(p.poller.name, func(t *testing.T) {
			for i, got := range p.lines(t) {
				want := fmt.Sprintf("after %v polls", plan[i].Arguments["n"])
				if got.Text != want || len(got.Odd) > 0 {
					t.Errorf("%s: got %+v, want %q", plan[i].Check, got, want)
				}
			}
			p.server.ledger.check(t, p.sharedPace)
			calls := p.server.ledger.calls(t)
			calls.once(t)
			commontest.SameIn(t, "polls of each call", []int{1, 9, 10, 11, 12, 250}, calls.sorted())
			for stream, polls := range calls.polls {
				want := 0
				if polls >= 9 && polls <= 11 {
					want = lastTrouble - firstTrouble + 1
				}
				if got := calls.troubled[stream]; got != want {
					t.Errorf("P3: of a call of %d polls %d were told the longer retry, want %d", polls, got, want)
				}
			}
		})
	}
}

func pollStep(n int, down string) step {
	return step{Check: fmt.Sprintf("poll-%d%s", n, down), Tool: "poll", Arguments: map[string]any{"n": n, "down": down}}
}

func TestStandaloneStreamLosesAndDoublesNothingOverManyPolls(t *testing.T) {
	const said = 30
	plan := []step{
		{Check: "notify", Tool: "notify", Arguments: map[string]any{"n": said}, Until: "end"},
		{Check: "after", Tool: "poll", Arguments: map[string]any{"n": 1}}, // what comes late is in its line
	}
	for _, p := range startAll(t, sessions.Limits{Pace: pollPace, Hold: pollHold}, plan) {
		t.Run(p.poller.name, func(t *testing.T) {
			lines := p.lines(t)
			var heard []string
			for _, line := range lines {
				if line.Error != "" || len(line.Odd) > 0 {
					t.Errorf("got %+v", line)
				}
				heard = append(heard, line.Logs...)
			}
			commontest.EqualIn(t, "heard", numbers(said, "end"), strings.Join(heard, " "))
			p.server.ledger.check(t, p.sharedPace)
			p.server.ledger.calls(t).once(t)
		})
	}
}

// scale divides all durations: the retry of 1 s is 2 ms, the hold of 25 s is 50 ms, and two
// hours are 14.4 s. It does not divide the 1 s during which the first response may be JSON,
// nor the time that a client and a machine need for one poll.
const scale = 500

func TestClientsSitOutACallOfTwoScaledHours(t *testing.T) {
	const takes, ticks = 2 * time.Hour / scale, 29
	plan := []step{
		{Check: "long", Tool: "long", Until: "end", Arguments: map[string]any{
			"ms": takes.Milliseconds(), "step": takes.Milliseconds() / (ticks + 1),
		}},
		{Check: "after", Tool: "poll", Arguments: map[string]any{"n": 1}},
	}
	for _, p := range startAll(t, sessions.Limits{Pace: time.Second / scale, Hold: 25 * time.Second / scale}, plan) {
		t.Run(p.poller.name, func(t *testing.T) {
			lines := p.lines(t)
			var progressed []string
			for _, n := range lines[0].Progress {
				progressed = append(progressed, fmt.Sprint(n))
			}
			if got, want := lines[0].Text, fmt.Sprintf("after %d steps", ticks); got != want {
				t.Errorf("got %+v, want %q", lines[0], want)
			}
			commontest.EqualIn(t, "progress: got", numbers(ticks), strings.Join(progressed, " "))
			heard := strings.Join(slices.Concat(lines[0].Logs, lines[1].Logs), " ")
			if want := "3 6 9 12 15 18 21 24 27 end"; heard != want {
				t.Errorf("on the standalone stream: got %s, want %s", heard, want)
			}
			p.server.ledger.check(t, p.sharedPace)
			calls := p.server.ledger.calls(t)
			calls.once(t)
			if polls := calls.sorted(); len(polls) != 2 || polls[1] <= 100 || polls[1] >= 600 {
				t.Errorf("polls of the calls: %v; want one, and more than 100 but fewer than 300 an hour", polls)
			}
		})
	}
}

// pollRun is a client that makes the calls of a plan at an endpoint of its own.
type pollRun struct {
	poller
	*clientRun
	server   *pollServer
	endpoint *httptest.Server
	plan     []step
}

// startAll starts every client against an endpoint of its own. The clients run at the same
// time, because they mostly wait.
func startAll(t *testing.T, limits sessions.Limits, plan []step) []*pollRun {
	t.Helper()
	steps, err := json.Marshal(plan)
	commontest.OK(t, err)
	var all []*pollRun
	for _, p := range allPollers() {
		server := newPollServer(t, openSQLite(t), limits)
		endpoint := httptest.NewServer(server)
		t.Cleanup(endpoint.Close)
		command := append(p.prepare(t), "--url", endpoint.URL+"/polls/mcp", "--plan", string(steps))
		all = append(all, &pollRun{p, newRun(t, p.name, streamable, command), server, endpoint, plan})
	}
	for _, r := range all {
		r.start(t)
	}
	return all
}

// lines waits for the client to end and returns its line for each step. Then every response
// has ended too: a client prints a result before the response that carried it is over.
func (r *pollRun) lines(t *testing.T) []polled {
	t.Helper()
	if err := r.cmd.Wait(); err != nil {
		t.Fatalf("the client ended with %v\n%s\n%s", err, &r.stdout, &r.stderr)
	}
	r.endpoint.Close()
	var lines []polled
	for decoder := json.NewDecoder(&r.stdout); ; {
		var line polled
		if err := decoder.Decode(&line); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if line.Client != r.poller.name || len(lines) == len(r.plan) || line.Check != r.plan[len(lines)].Check {
			t.Fatalf("%s says %+v", r.poller.name, line)
		}
		lines = append(lines, line)
	}
	if len(lines) != len(r.plan) {
		t.Fatalf("%d lines for %d calls\n%s", len(lines), len(r.plan), &r.stderr)
	}
	return lines
}

func openSQLite(t *testing.T) storage.Store {
	t.Helper()
	store, err := sqlitestore.Open(filepath.Join(t.TempDir(), "sessions.db"))
	commontest.OK(t, err)
	t.Cleanup(func() {
		commontest.Check(t, store.Close())
	})
	return store
}
