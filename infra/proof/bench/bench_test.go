package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// The tests' program also runs as the reaper of processes that the tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "reap" {
		if err := reap(os.Args[2:]); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestQuantilesAreTheNearestRank(t *testing.T) {
	var took []time.Duration
	for i := 100; i > 0; i-- {
		took = append(took, time.Duration(i)*time.Millisecond)
	}
	got := []float64{quantile(took, 0), quantile(took, 0.5), quantile(took, 0.95), quantile(took, 0.99), quantile(took, 1), quantile(took[:1], 0.5)}
	commontest.Same(t, []float64{1, 50, 95, 99, 100, 100}, got)
	if !math.IsNaN(quantile(nil, 0.5)) {
		t.Error("a quantile of nothing is a number")
	}
}

func TestRatiosAreOfTheSameRound(t *testing.T) {
	var s samples
	for round, pair := range map[int][2]float64{1: {2, 1}, 2: {30, 10}, 3: {4, 0}} {
		s = append(s, sample{"p", round, "a", "m", "ms", pair[0]}, sample{"p", round, "b", "m", "ms", pair[1]})
	}
	s = append(s, sample{"p", 4, "a", "m", "ms", 9})
	commontest.Same(t, spread{2, 2, 2.5, 3}, s.ratio("p", "a", "b", "m"))
}

func TestWhatWasNotMeasuredIsNoFigure(t *testing.T) {
	kept := finite(samples{{Value: math.NaN()}, {Value: math.Inf(1)}, {Value: 1}})
	if len(kept) != 1 || cell(samples{}.spread("p", "a", "m")) != "–" {
		t.Error(kept)
	}
}

func TestPartsMeasuredAnewReplaceTheirFiguresOnly(t *testing.T) {
	r := results{Parts: map[string]partRun{}, Samples: samples{{Part: "latency", Value: 1}, {Part: programsTable, Value: 2}, {Part: "idle", Value: 3}}}
	r.merge(map[string]partRun{"latency": {}}, samples{{Part: "latency", Value: 4}})
	commontest.Same(t, samples{{Part: "idle", Value: 3}, {Part: "latency", Value: 4}}, r.Samples)
}

// answering serves one answer, JSON or an event stream. It replaces ID in the text by the
// request's id.
func answering(t *testing.T, kind, text string) *httpClient {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ ID json.RawMessage }
		_ = json.NewDecoder(r.Body).Decode(&asked) // a test sends requests only
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, strings.ReplaceAll(text, "ID", string(asked.ID)))
	}))
	t.Cleanup(s.Close)
	return newHTTPClient(s.URL, false)
}

func TestOnlyTheRightAnswerCounts(t *testing.T) {
	const right = `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"Echo: hello"}]}}`
	const other = `{"jsonrpc":"2.0","id":99,"result":{"content":[{"type":"text","text":"Echo: hello"}]}}`
	for _, test := range []struct {
		name, kind, text string
		want             error
	}{
		{"JSON", "application/json", right, nil},
		{"an event stream", "text/event-stream", "id: 1\ndata: \n\nevent: message\ndata: " + right + "\n\n", nil},
		{"behind that of another", "text/event-stream", "data: " + other + "\n\ndata: " + right + "\n\n", nil},
		{"another text", "application/json", strings.Replace(right, "hello", "hullo", 1), wrongAnswer{}},
		{"to another request", "application/json", other, wrongAnswer{}},
		{"only to another", "text/event-stream", "data: " + other + "\n\n", streamEnded{}},
		{"an error", "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"no"}}`, failure{-32000, "no"}},
		{"an error of the tool", "application/json", `{"jsonrpc":"2.0","id":ID,"result":{"isError":true,"content":[{"type":"text","text":"Echo: hello"}]}}`, wrongAnswer{}},
		{"no JSON", "application/json", "oops", wrongAnswer{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := hello(t.Context(), answering(t, test.kind, test.text))
			if got, want := fmt.Sprintf("%T", err), fmt.Sprintf("%T", test.want); got != want {
				t.Errorf("%v is a %s, want a %s", err, got, want)
			}
		})
	}
}

func TestLoadCountsFailures(t *testing.T) {
	calls := 0
	e := &endpoint{running: here(t, "sleep", "60")}
	no := errors.New("no")
	l, err := press(t.Context(), e, []*httpClient{nil}, 50*time.Millisecond, func(context.Context, *httpClient) error {
		if calls++; calls%2 == 0 {
			return no
		}
		return nil
	})
	if err != nil || len(l.took)+l.failed != calls || l.failed != calls/2 || !errors.Is(l.first, no) {
		t.Errorf("%d calls: %d answered, %d failed, %v, %v", calls, len(l.took), l.failed, l.first, err)
	}
}

// here starts a command below a reaper. The reaper is this program.
func here(t *testing.T, command ...string) *running {
	t.Helper()
	self, err := os.Executable()
	commontest.OK(t, err)
	r, err := place{self: self, scratch: t.TempDir()}.run(command, nil, nil)
	commontest.OK(t, err)
	t.Cleanup(r.kill)
	return r
}

func TestWhatAnOrphanUsedIsCounted(t *testing.T) {
	// The inner shell uses some CPU time after its parent has ended, and then ends.
	r := here(t, "sh", "-c", `(sh -c 'i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done; exit' &); exec sleep 60`)
	seen := false
	for ends := time.Now().Add(20 * time.Second); ; {
		all, err := below(r.pid())
		if err == nil {
			burning := slices.ContainsFunc(all, func(m member) bool { return m.command == "sh" })
			if seen = seen || burning; seen && !burning {
				break
			}
		}
		if time.Now().After(ends) {
			t.Fatal("the shell neither began nor ended")
		}
		time.Sleep(time.Millisecond) // a real process
	}
	cpu, n, err := treeCPU(r.pid())
	if err != nil || n != 1 || cpu < 3*tick {
		t.Errorf("%v of %d processes, %v; want the CPU of the one that has ended, and one that sleeps", cpu, n, err)
	}
}

func TestStopLeavesNothing(t *testing.T) {
	r := here(t, "sh", "-c", `(trap '' TERM; sleep 60 & wait) & exec sleep 60`)
	for all := []member(nil); len(all) < 4; {
		all, _ = below(r.pid()) // until all are there
	}
	r.kill()
	if all, err := below(r.pid()); err == nil {
		t.Errorf("still there: %v", all)
	}
}

// What a run measured goes into the pages; what it did not measure stays as it was.
func TestPagesGetTheFiguresOfARun(t *testing.T) {
	r := results{Machine: "a machine", Parts: map[string]partRun{"latency": {Server: "echo", Rounds: 1, Scale: 1, Busy: "0, 0, 0"}, "scale": {Rounds: 1, Scale: 1}}}
	for peer, value := range map[string]float64{"dormouse": 4, "tbxark": 1, "supergateway": 2} {
		for _, metric := range []string{"p50 at 1", "calls at 16"} {
			r.Samples = append(r.Samples, sample{"latency", 1, peer, metric, "ms", value})
		}
	}
	r.Samples = append(r.Samples, sample{"scale", 1, "10 servers", "call p50", "ms", 0.83})
	page := "<!-- bench calls -->old<!-- bench end --> <!-- bench beside --><!-- bench end --> <!-- bench compare --><!-- bench end --> <!-- bench scale --><!-- bench end --> <!-- bench wake -->old wake<!-- bench end -->"
	got, err := r.fill(page)
	commontest.OK(t, err)
	for _, want := range []string{
		"| over supergateway | `--durability process` | TBXark", "\n| p50 of a call at 1 | 2 | 0.50 |\n", "takes 4 times as long at 1, and answers 4 times",
		"answers 0.25 times as many", "| | call p50, ms |", "\n| 10 servers | 0.83 | – |", "-->old wake<!--",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in %s", want, got)
		}
	}
	if again, err := r.fill(got); err != nil || again != got {
		t.Errorf("the second run writes %s, %v", again, err)
	}
	if _, err := r.fill("<!-- bench nothing --><!-- bench end -->"); err == nil {
		t.Error("a block that nobody writes is no error")
	}
	for _, page := range pages {
		text, err := os.ReadFile("../../../" + page)
		commontest.OK(t, err)
		if filled, err := (results{}).fill(string(text)); err != nil || filled != string(text) {
			t.Errorf("%s changes without a measurement, %v", page, err)
		}
		if strings.Count(string(text), "<!-- bench ") != 2*len(block.FindAllString(string(text), -1)) {
			t.Errorf("%s has a block that does not end", page)
		}
	}
}
