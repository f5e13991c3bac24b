package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestRequirementsAreTheServersScenariosOnly(t *testing.T) {
	const listing = `Required for 2025-11-25 (3 scenarios, frozen; run at the 2025-11-25 wire):

Server scenarios (test against a server):
  - ping
  - tools-list

Client scenarios (test against a client):
  - sse-retry

Run and reported, but never scored:
  extension (1):
    - auth/dpop [client]
  pending (1):
    - server-sse-polling [server]

`
	got, err := parseRequirements(listing)
	commontest.OK(t, err)
	want := requirements{scored: []string{"ping", "tools-list"}, notScored: []string{"server-sse-polling"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(requirements{})); diff != "" {
		t.Error(diff)
	}
}

func TestListingWithoutServerScenariosIsAnError(t *testing.T) {
	if _, err := parseRequirements("unknown option\n"); err == nil {
		t.Error("a listing that names no scenario was taken for one without requirements")
	}
}

func TestVerdictGoesByChecksNotByTicks(t *testing.T) {
	for _, c := range []struct {
		name   string
		checks []check
		want   verdict
	}{
		{"all succeeded", []check{{Status: success}, {Status: success}}, passed},
		{"some skipped", []check{{Status: success}, {Status: skipped}}, passed},
		{"a warning among successes", []check{{Status: success}, {Status: warning}}, warned},
		{"a failure outweighs a warning", []check{{Status: warning}, {Status: failure}}, failed},
		{"only remarks", []check{{Status: "INFO"}, {Status: skipped}}, vacuous},
		{"no checks", []check{}, vacuous},
		{"ended without results", nil, failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := (scenario{checks: c.checks}).verdict(); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestProblemsNameEveryCheckThatIsToBlame(t *testing.T) {
	results := []scenario{
		{name: "good", scored: true, checks: []check{{ID: "a", Status: success}}},
		{name: "bad", scored: true, checks: []check{
			{ID: "a", Status: failure, ErrorMessage: "no result", Details: []byte("{\n\"status\": 500}")},
			{ID: "b", Status: warning, Description: "should be fast"},
			{ID: "c", Status: success},
		}},
		{name: "empty", scored: true, checks: []check{{ID: "a", Status: "INFO"}}},
		{name: "gone", scored: true},
		{name: "other", checks: []check{{ID: "a", Status: failure}}},
	}
	want := []string{
		`bad: FAILURE a: no result; details: {"status":500}`,
		`bad: WARNING b: should be fast; details: none`,
		`empty: no check succeeded`,
		`gone: ended without results; the suite's output says why`,
	}
	if diff := cmp.Diff(want, problemsOf(results)); diff != "" {
		t.Error(diff)
	}
}

func TestLostIsWhatSucceedsOnlyDirectly(t *testing.T) {
	direct := []scenario{
		{name: "s", checks: []check{
			{ID: "kept", Status: success},
			{ID: "failing", Status: success},
			{ID: "skipped", Status: success},
			{ID: "twice", Status: success},
			{ID: "twice", Status: success},
			{ID: "remark", Status: success},
			{ID: "absent", Status: success},
			{ID: "never", Status: warning},
		}},
		{name: "gone", checks: []check{{ID: "a", Status: success}}},
		{name: "broken"},
	}
	here := []scenario{
		{name: "s", checks: []check{
			{ID: "kept", Status: success},
			{ID: "failing", Status: failure},
			{ID: "skipped", Status: skipped},
			{ID: "twice", Status: success},
			{ID: "twice", Status: warning},
			{ID: "remark", Status: "INFO"},
			{ID: "never", Status: warning},
		}},
		{name: "gone"},
		{name: "broken"},
	}
	want := []string{
		"s: failing succeeds without Dormouse",
		"s: skipped succeeds without Dormouse",
		"s: twice succeeds without Dormouse",
		"gone: has results without Dormouse",
	}
	if diff := cmp.Diff(want, lost(direct, here)); diff != "" {
		t.Error(diff)
	}
}

func TestResultsAreReadInTheOrderOfTheRequirements(t *testing.T) {
	dir := t.TempDir()
	writeResult(t, dir, "server-server-sse-polling-2026-11-21T17-06-58-442Z", `[{"id":"p","status":"WARNING"}]`)
	writeResult(t, dir, "server-ping-2026-11-21T17-06-56-749Z", `[{"id":"a","status":"SUCCESS"}]`)
	want := requirements{scored: []string{"ping", "crashed", "missing"}, notScored: []string{"server-sse-polling"}}
	commontest.OK(t, os.Mkdir(filepath.Join(dir, "server-crashed-2026-11-21T17-06-56-750Z"), 0o700))
	results, err := readResults(dir, want)
	commontest.OK(t, err)
	var got []string
	for _, s := range results {
		got = append(got, s.name+" "+string(s.verdict()))
	}
	if diff := cmp.Diff([]string{"ping ok", "crashed FAIL", "missing FAIL", "server-sse-polling warn"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestResultNobodyAskedForIsAnError(t *testing.T) {
	dir := t.TempDir()
	writeResult(t, dir, "server-new-2026-11-21T17-06-56-749Z", `[]`)
	if _, err := readResults(dir, requirements{scored: []string{"ping"}}); err == nil {
		t.Error("the result of an unknown scenario was passed over")
	}
}

func TestTableCountsScenariosAndChecks(t *testing.T) {
	got := table([]row{{"legacy", []scenario{
		{scored: true, checks: []check{{Status: success}, {Status: skipped}}},
		{scored: true, checks: []check{{Status: warning}}},
		{scored: true},
		{checks: []check{{Status: "INFO"}}},
	}}})
	_, line, _ := strings.Cut(got, "\n")
	if diff := cmp.Diff([]string{"legacy", "1/1/1/0", "0/0/0/1", "1/1/0/1"}, strings.Fields(line)); diff != "" {
		t.Error(diff)
	}
}

func writeResult(t *testing.T, dir, name, checks string) {
	t.Helper()
	commontest.OK(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	commontest.OK(t, os.WriteFile(filepath.Join(dir, name, "checks.json"), []byte(checks), 0o600))
}
