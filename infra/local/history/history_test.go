package history_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/history"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// event returns a call that ends now.
func event(server, principal, tool string, took time.Duration, reason string) journal.Event {
	return journal.Event{
		Time: time.Now(), Kind: journal.Call, Tenant: "acme", Name: server, Principal: principal, Tool: tool, Duration: took, Reason: reason,
	}
}

func open(t *testing.T, path string, calls int) *history.History {
	t.Helper()
	h := history.New(calls)
	commontest.OK(t, h.Open(path))
	return h
}

func calls(t *testing.T, h *history.History, q api.CallQuery) (lines []string) {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 1000
	}
	page, err := h.Calls(t.Context(), q)
	commontest.OK(t, err)
	for _, c := range page.Calls {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", c.Principal, c.Server, c.Tool, c.Reason)))
	}
	return lines
}

func TestOnlyItsOwnerMayReadTheFile(t *testing.T) {
	for name, prepare := range map[string]func(path string) error{
		"new":                func(string) error { return nil },
		"of earlier release": func(path string) error { return os.WriteFile(path, nil, 0o644) }, //nolint:gosec // that is the point
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			path := filepath.Join(folder, "history.db")
			commontest.OK(t, prepare(path))
			h := open(t, path, 10)
			defer func() { _ = h.Close() }()
			files, err := os.ReadDir(folder)
			if err != nil || len(files) < 2 {
				t.Fatalf("the folder has %v, %v; want the file and its journal", files, err)
			}
			for _, f := range files {
				info, err := f.Info()
				commontest.OK(t, err)
				commontest.EqualIn(t, f.Name(), 0o600, info.Mode().Perm())
			}
		})
	}
}

func TestHistoryAnswersWhoCalledWhatAndWhatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := open(t, filepath.Join(t.TempDir(), "history.db"), 10_000)
		defer func() { _ = h.Close() }()
		h.Record(event("mine", "ada", "get_forecast", time.Second, ""))
		time.Sleep(25 * time.Hour) // of the synctest clock, here and below
		h.Record(event("mine", "bob", "get_forecast", time.Second, "it exited"))
		h.Record(event("mine", "bob", "get_alerts", time.Second, ""))
		h.Record(event("other", "bob", "get_forecast", time.Second, ""))
		for _, test := range []struct {
			q    api.CallQuery
			want []string
		}{
			{api.CallQuery{}, []string{"bob other get_forecast", "bob mine get_alerts", "bob mine get_forecast it exited", "ada mine get_forecast"}},
			{api.CallQuery{Tool: "get_forecast", Since: time.Now().Add(-24 * time.Hour)}, []string{"bob other get_forecast", "bob mine get_forecast it exited"}},
			{api.CallQuery{Failed: true}, []string{"bob mine get_forecast it exited"}},
			{api.CallQuery{Principal: "ada"}, []string{"ada mine get_forecast"}},
			{api.CallQuery{Servers: []string{"other"}}, []string{"bob other get_forecast"}},
			{api.CallQuery{Servers: []string{}}, nil},
			{api.CallQuery{Tenant: "somebody"}, nil},
		} {
			commontest.SameIn(t, fmt.Sprintf("%+v", test.q), test.want, calls(t, h, test.q))
		}
		first, err := h.Calls(t.Context(), api.CallQuery{Limit: 3})
		if err != nil || len(first.Calls) != 3 || first.Next == "" {
			t.Fatalf("first page: %+v, %v", first, err)
		}
		rest, err := h.Calls(t.Context(), api.CallQuery{Limit: 3, After: first.Next})
		if err != nil || len(rest.Calls) != 1 || rest.Next != "" || rest.Calls[0].Principal != "ada" {
			t.Errorf("second page: %+v, %v", rest, err)
		}
		if _, err := h.Calls(t.Context(), api.CallQuery{Limit: 3, After: "x"}); err == nil {
			t.Error("a page after x is answered")
		}
	})
}

func TestACallIsKeptWithWhatItWokeAndItsBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	// Files of 0.1.0-alpha.2 lack the columns for wakes and bytes.
	old, err := sql.Open("sqlite", "file:"+path)
	if err == nil {
		_, err = old.ExecContext(t.Context(), `CREATE TABLE calls (id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, tenant TEXT NOT NULL,
			principal TEXT NOT NULL, server TEXT NOT NULL, tool TEXT NOT NULL, client TEXT NOT NULL, session TEXT NOT NULL, trace TEXT NOT NULL,
			ms REAL NOT NULL, failed INTEGER NOT NULL, code TEXT NOT NULL, reason TEXT NOT NULL) STRICT;
			INSERT INTO calls VALUES (1, unixepoch() * 1000, 'acme', 'ada', 'mine', 'before', '', '', '', 1, 0, '', '')`)
	}
	if err = errors.Join(err, old.Close()); err != nil {
		t.Fatal(err)
	}
	h := open(t, path, 1_000)
	e := event("mine", "ada", "add", time.Second, "")
	e.Wakes, e.In, e.Out = 1, 160, 410
	h.Record(e)
	commontest.OK(t, h.Close())
	h = open(t, path, 1_000)
	defer func() { _ = h.Close() }()
	page, err := h.Calls(t.Context(), api.CallQuery{Limit: 10})
	commontest.OK(t, err)
	var got []string
	for _, c := range page.Calls {
		got = append(got, fmt.Sprint(c.Tool, " ", c.Woke, " ", c.In, " ", c.Out))
	}
	commontest.Same(t, []string{"add true 160 410", "before false 0 0"}, got)
}

// A day of traffic, with a machine that is killed in the middle of it.
func TestKilledMachineLosesTheLastMinuteOfItsHistoryAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "history.db")
		ctx, kill := context.WithCancel(t.Context())
		h := open(t, path, 10_000)
		go h.Keep(ctx, slog.New(slog.DiscardHandler))
		began, step, made := time.Now(), 20*time.Second, 0
		traffic := func(h *history.History, until time.Duration) {
			for time.Since(began) < until {
				h.Record(event("mine", "ada", "add", 20*time.Millisecond, ""))
				made++
				time.Sleep(step)
			}
		}
		traffic(h, 59*time.Minute+35*time.Second) // 59 is a prime, so that saves which are too seldom do not fall on it
		kill()                                    // h is closed after all checks, because a program that was killed saves nothing
		again := open(t, path, 10_000)
		defer func() { _, _ = again.Close(), h.Close() }()
		go again.Keep(t.Context(), slog.New(slog.DiscardHandler))
		traffic(again, 2*time.Hour)
		s, err := again.Series(t.Context(), api.SeriesQuery{Since: began})
		if err != nil || s.Step != 60 {
			t.Fatalf("series in steps of %d s, %v", s.Step, err)
		}
		var n int64
		for _, b := range s.Buckets {
			n += b.Calls
		}
		if lost := made - int(n); lost < 0 || lost > int(time.Minute/step) {
			t.Errorf("%d of %d calls are in the series", n, made)
		}
		commontest.EqualIn(t, "calls that are listed", int(n), len(calls(t, again, api.CallQuery{Limit: 100_000})))
	})
}

func TestOldCallsAndCountsAreDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := open(t, filepath.Join(t.TempDir(), "history.db"), 10_000)
		defer func() { _ = h.Close() }()
		h.Record(event("mine", "ada", "first", 0, ""))
		began := time.Now()
		buckets := func(since time.Duration) int {
			s, err := h.Series(t.Context(), api.SeriesQuery{Since: time.Now().Add(-since)})
			commontest.OK(t, err)
			return len(s.Buckets)
		}
		for _, after := range []struct {
			time                  time.Duration
			calls, minutes, hours int
		}{
			{0, 1, 1, 1},
			{25 * time.Hour, 2, 1, 2},
			{8 * 24 * time.Hour, 2, 1, 3},
			{91 * 24 * time.Hour, 1, 1, 3},
		} {
			time.Sleep(time.Until(began.Add(after.time)))
			if after.time > 0 {
				h.Record(event("mine", "ada", "next", 0, ""))
			}
			commontest.EqualIn(t, fmt.Sprintf("calls after %v", after.time), after.calls, len(calls(t, h, api.CallQuery{})))
			commontest.EqualIn(t, fmt.Sprintf("minutes and hours after %v", after.time), [2]int{after.minutes, after.hours}, [2]int{buckets(23 * time.Hour), buckets(100 * 24 * time.Hour)})
		}
	})
}

func TestHistoryKeepsTheNewestCalls(t *testing.T) {
	h := open(t, filepath.Join(t.TempDir(), "history.db"), 1_000)
	defer func() { _ = h.Close() }()
	for i := range 2_500 {
		h.Record(event("mine", "ada", fmt.Sprint(i), 0, ""))
		if i%500 == 0 {
			calls(t, h, api.CallQuery{}) // saves
		}
	}
	if all := calls(t, h, api.CallQuery{Limit: 5_000}); len(all) != 1_000 || all[0] != "ada mine 2499" {
		t.Errorf("%d calls, the newest %q", len(all), all[0])
	}
}

func TestMetricsCountCallsByPrincipalAndTool(t *testing.T) {
	h := history.New(1000)
	h.Record(event("mine", "ada", "add", 20*time.Millisecond, ""))
	h.Record(event("mine", "ada", "add", 2*time.Minute, `it said "no"`))
	h.Record(event("mine", `b"ob`, "add", 5*time.Millisecond, ""))
	h.Record(journal.Event{Time: time.Now(), Kind: journal.BoxWake, Name: "mine", Tenant: "acme"})
	h.Record(event("hidden", "eve", "spy", 0, ""))
	var text strings.Builder
	commontest.OK(t, h.Metrics(&text, func(tenant, server string) bool { return tenant == "acme" && server != "hidden" }))
	for _, want := range []string{
		`dormouse_tool_calls_total{tenant="acme",server="mine",principal="ada",tool="add",outcome="done"} 1`,
		`dormouse_tool_calls_total{tenant="acme",server="mine",principal="ada",tool="add",outcome="failed"} 1`,
		`dormouse_tool_calls_total{tenant="acme",server="mine",principal="b\"ob",tool="add",outcome="done"} 1`,
		`dormouse_box_starts_total{tenant="acme",server="mine"} 1`,
		`dormouse_tool_call_duration_seconds_bucket{tenant="acme",server="mine",le="0.005"} 1`,
		`dormouse_tool_call_duration_seconds_bucket{tenant="acme",server="mine",le="60"} 2`,
		`dormouse_tool_call_duration_seconds_bucket{tenant="acme",server="mine",le="+Inf"} 3`,
		`dormouse_tool_call_duration_seconds_sum{tenant="acme",server="mine"} 120.025`,
	} {
		commontest.Contains(t, "metrics", want+"\n", text.String())
	}
	commontest.EqualIn(t, "metrics show a server that the reader must not see", false, strings.Contains(text.String(), "hidden"))
}

// What was refused has its caller, and is no failure, no call of a person and no duration.
func TestRefusalsAreNoFailures(t *testing.T) {
	h := open(t, filepath.Join(t.TempDir(), "history.db"), 1000)
	defer func() { _ = h.Close() }()
	limited := event("mine", "ada", "look", time.Second, "too many calls")
	limited.Code, limited.Sender = "busy", journal.Sender{Key: "k7", Address: "192.0.2.7", Refusal: "rate"}
	h.Record(limited)
	h.Record(event("mine", "ada", "look", time.Millisecond, ""))
	stranger := journal.Event{Time: time.Now(), Kind: journal.Refused, Name: "memory", Reason: "unknown key", Code: "unauthenticated", Measured: journal.Measured{Sender: journal.Sender{Key: "k8", Address: "192.0.2.8", Refusal: "unauthenticated"}}}
	h.Record(stranger)
	stranger.Kind = journal.RefusedAgain
	h.Record(stranger)

	page, err := h.Calls(t.Context(), api.CallQuery{Limit: 10})
	if err != nil || len(page.Calls) != 3 {
		t.Fatalf("%+v, %v", page, err)
	}
	for i, want := range []api.Sender{{Key: "k8", Address: "192.0.2.8", Refusal: "unauthenticated"}, {}, {Key: "k7", Address: "192.0.2.7", Refusal: "rate"}} {
		if c := page.Calls[i]; c.Sender != want || c.Failed {
			t.Errorf("%+v", c)
		}
	}
	if failed := calls(t, h, api.CallQuery{Failed: true}); failed != nil {
		t.Errorf("failed: %v", failed)
	}
	commontest.EqualIn(t, "calls that a tenant sees", 2, len(calls(t, h, api.CallQuery{Tenant: "acme"})))
	s, err := h.Series(t.Context(), api.SeriesQuery{Since: time.Now().Add(-time.Hour)})
	if err != nil || len(s.Buckets) != 1 || s.Buckets[0].Calls != 1 || s.Buckets[0].Failed != 0 || s.Buckets[0].Refused != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	people, err := h.People(t.Context(), api.PeopleQuery{})
	if err != nil || len(people) != 1 || people[0].Calls != 1 || people[0].Failed != 0 {
		t.Errorf("%+v, %v", people, err)
	}
	for who, want := range map[string]int64{"acme": 0, "": 2} {
		var text strings.Builder
		commontest.OK(t, h.Metrics(&text, func(tenant, _ string) bool { return who == "" || tenant == who }))
		if !strings.Contains(text.String(), `dormouse_refusals_total{tenant="acme",reason="rate"} 1`) || strings.Contains(text.String(), fmt.Sprintf(`dormouse_refusals_total{tenant="",reason="unauthenticated"} %d`, want)) == (want == 0) {
			t.Errorf("for tenant %q:\n%s", who, text.String())
		}
	}
}

// Names that one tenant's callers invent take no label from another tenant, and 2,000 labels of
// its own at most. Names that no list has are one label.
func TestInventedNamesBlindNobody(t *testing.T) {
	h := history.New(1000)
	record := func(tenant, tool string, unlisted bool) {
		e := event("mine", "eve", tool, 0, "no such tool")
		e.Tenant, e.Unlisted = tenant, unlisted
		h.Record(e)
	}
	for i := range 3_000 {
		record("loud", fmt.Sprint("a", i), false)
		record("acme", fmt.Sprint("b", i), true)
	}
	record("acme", "forecast", false)
	var text strings.Builder
	commontest.OK(t, h.Metrics(&text, func(tenant, _ string) bool { return tenant == "acme" }))
	for _, want := range []string{`principal="eve",tool="(unknown)",outcome="failed"} 3000`, `principal="eve",tool="forecast",outcome="failed"} 1`} {
		commontest.Contains(t, "metrics", want, text.String())
	}
	text.Reset()
	commontest.OK(t, h.Metrics(&text, func(tenant, _ string) bool { return tenant == "loud" }))
	if n := strings.Count(text.String(), "dormouse_tool_calls_total{"); n != 2*2_001 || !strings.Contains(text.String(), `tool="(others)",outcome="failed"} 1000`) {
		t.Errorf("%d lines of calls, or the calls of further tools are not counted together", n)
	}
}

func TestPeopleAreListedWithWhatTheyCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := open(t, filepath.Join(t.TempDir(), "history.db"), 10_000)
		defer func() { _ = h.Close() }()
		h.Record(event("old", "ada", "add", time.Millisecond, ""))
		time.Sleep(2 * time.Hour)
		h.Record(event("mine", "ada", "add", time.Millisecond, ""))
		h.Record(event("mine", "bob", "add", time.Millisecond, "it exited"))
		h.Record(event("other", "bob", "add", time.Millisecond, ""))
		for _, test := range []struct {
			q    api.PeopleQuery
			want string
		}{
			{api.PeopleQuery{}, "ada [mine old] 2 0, bob [mine other] 2 1"},
			{api.PeopleQuery{Since: time.Now().Add(-time.Hour)}, "ada [mine] 1 0, bob [mine other] 2 1"},
			{api.PeopleQuery{Servers: []string{"other"}}, "bob [other] 1 0"},
			{api.PeopleQuery{Tenant: "somebody"}, ""},
		} {
			all, err := h.People(t.Context(), test.q)
			commontest.OK(t, err)
			var got []string
			for _, p := range all {
				got = append(got, fmt.Sprint(p.Principal, " ", p.Servers, " ", p.Calls, " ", p.Failed))
				if p.LastCall.Before(time.Now().Add(-time.Minute)) && len(test.q.Servers) == 0 {
					t.Errorf("%s called last at %v", p.Principal, p.LastCall)
				}
			}
			commontest.EqualIn(t, fmt.Sprintf("%+v", test.q), test.want, strings.Join(got, ", "))
		}
	})
}

func TestNewestStartsAreListed(t *testing.T) {
	h := open(t, filepath.Join(t.TempDir(), "history.db"), 10_000)
	defer func() { _ = h.Close() }()
	record := func(kind, tenant, server, session, reason string) {
		h.Record(journal.Event{Kind: kind, Time: time.Now(), Tenant: tenant, Name: server, Session: session, Duration: 1500 * time.Microsecond, Reason: reason, Measured: journal.Measured{Install: 2 * time.Second}})
	}
	record(journal.ServerReady, "acme", "mine", "a", "")
	record(journal.ServerFailed, "acme", "mine", "b", "exited with code 1")
	record(journal.ServerReady, "other", "mine", "c", "")
	record(journal.ServerReady, "acme", "two", "d", "")
	starts := func(q api.StartQuery) string {
		all, err := h.Starts(t.Context(), q)
		commontest.OK(t, err)
		var got []string
		for _, s := range all {
			got = append(got, fmt.Sprint(s.Session, " ", s.MS, " ", s.InstallMS, " ", s.Failed, " ", s.Reason))
		}
		return strings.Join(got, ", ")
	}
	commontest.Equal(t, "b 1.5 2000 true exited with code 1, a 1.5 2000 false ", starts(api.StartQuery{Server: "mine", Tenant: "acme", Limit: 20}))
	commontest.Equal(t, "c 1.5 2000 false ", starts(api.StartQuery{Server: "mine", Limit: 1}))
}
