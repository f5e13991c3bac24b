package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// These are the statuses of a check, as the suite writes them. An INFO describes the run
// and proves nothing.
const (
	success = "SUCCESS"
	failure = "FAILURE"
	warning = "WARNING"
	skipped = "SKIPPED"
)

// check is one entry of a scenario's checks.json.
type check struct {
	ID           string          `json:"id"`
	Status       string          `json:"status"`
	Description  string          `json:"description"`
	ErrorMessage string          `json:"errorMessage"`
	Details      json.RawMessage `json:"details"`
}

// requirements are the server scenarios that the suite runs for a revision of the protocol.
type requirements struct {
	scored, notScored []string
}

// parseRequirements reads the output of `conformance list --requirements`. The output
// lists the scored scenarios by side, below a line such as "Server". Then it lists the
// scenarios that are run but not scored, each with its side after it.
func parseRequirements(listing string) (requirements, error) {
	var r requirements
	section := ""
	for line := range strings.Lines(listing) {
		line = strings.TrimRight(line, "\n")
		item, isItem := strings.CutPrefix(strings.TrimLeft(line, " "), "- ")
		switch {
		case !isItem && line != "" && !strings.HasPrefix(line, " "):
			section, _, _ = strings.Cut(line, " ")
		case !isItem:
		case section == "Server":
			r.scored = append(r.scored, item)
		case section == "Run":
			if name, ours := strings.CutSuffix(item, " [server]"); ours {
				r.notScored = append(r.notScored, name)
			}
		}
	}
	if len(r.scored) == 0 {
		return r, fmt.Errorf("the suite lists no server scenarios: %q", listing)
	}
	return r, nil
}

// scenario is the result of one scenario. A scenario without checks ended before it wrote
// any.
type scenario struct {
	name   string
	scored bool
	checks []check
}

// resultFolder matches the name that the suite gives to the folder of a scenario's
// results. The name ends in the time of the scenario's start.
func resultFolder() *regexp.Regexp {
	return regexp.MustCompile(`^server-(.+)-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3}Z$`)
}

// authorizationFolder is resultFolder for scenarios that test authorization servers.
func authorizationFolder() *regexp.Regexp {
	return regexp.MustCompile(`^authorization-server-(.+)-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3}Z$`)
}

// readResults reads the results of all required scenarios, in their order. A result of
// another scenario is an error, because otherwise the test would ignore it.
func readResults(dir string, want requirements) ([]scenario, error) {
	return readResultsOf(dir, resultFolder(), want)
}

func readResultsOf(dir string, pattern *regexp.Regexp, want requirements) ([]scenario, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("the suite left no results: %w", err)
	}
	all := slices.Concat(want.scored, want.notScored)
	checks := map[string][]check{}
	for _, entry := range entries {
		parts := pattern.FindStringSubmatch(entry.Name())
		if parts == nil || !slices.Contains(all, parts[1]) {
			return nil, fmt.Errorf("%s is not the result of a required scenario", entry.Name())
		}
		if checks[parts[1]], err = readChecks(filepath.Join(dir, entry.Name(), "checks.json")); err != nil {
			return nil, err
		}
	}
	var results []scenario
	for _, name := range all {
		results = append(results, scenario{name: name, scored: slices.Contains(want.scored, name), checks: checks[name]})
	}
	return results, nil
}

func readChecks(path string) ([]check, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var checks []check
	if err := json.Unmarshal(data, &checks); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return checks, nil
}

func (s scenario) count(status string) int {
	n := 0
	for _, c := range s.checks {
		if c.Status == status {
			n++
		}
	}
	return n
}

// says reports whether a check with this id has one of the statuses.
func (s scenario) says(id string, statuses ...string) bool {
	return slices.ContainsFunc(s.checks, func(c check) bool { return c.ID == id && slices.Contains(statuses, c.Status) })
}

// verdict is one word about a scenario. The suite itself prints a tick for all but failed.
type verdict string

const (
	passed  verdict = "ok"
	warned  verdict = "warn"
	failed  verdict = "FAIL"
	vacuous verdict = "vacuous" // no check succeeded and none failed: nothing was proved
)

func (s scenario) verdict() verdict {
	switch {
	case s.checks == nil || s.count(failure) > 0:
		return failed
	case s.count(warning) > 0:
		return warned
	case s.count(success) == 0:
		return vacuous
	}
	return passed
}

// problems says why the scenario is not ok, with a line for each check that did not
// succeed.
func (s scenario) problems() []string {
	if s.checks == nil {
		return []string{s.name + ": ended without results; the suite's output says why"}
	}
	var lines []string
	for _, c := range s.checks {
		if c.Status == failure || c.Status == warning {
			lines = append(lines, fmt.Sprintf("%s: %s %s: %s; details: %s",
				s.name, c.Status, c.ID, c.message(), c.details(600)))
		}
	}
	if s.verdict() == vacuous {
		lines = append(lines, s.name+": no check succeeded")
	}
	return lines
}

func (c check) message() string {
	if c.ErrorMessage != "" {
		return c.ErrorMessage
	}
	return c.Description
}

// details returns what the check recorded, often the exchange, on one line of at most
// limit bytes. The result files have the whole text.
func (c check) details(limit int) string {
	var line bytes.Buffer
	if json.Compact(&line, c.Details) != nil || line.Len() == 0 {
		return "none"
	}
	if line.Len() > limit {
		return strings.ToValidUTF8(line.String()[:limit], "") + "…"
	}
	return line.String()
}

// problemsOf says why a lane does not pass: every scored scenario must be ok.
func problemsOf(results []scenario) []string {
	var lines []string
	for _, s := range results {
		if s.scored {
			lines = append(lines, s.problems()...)
		}
	}
	return lines
}

// lost lists the checks that succeed when the suite asks the server directly, but fail,
// warn or are skipped here, in any scenario, scored or not. Dormouse must not lose a
// feature of the server. lost leaves out a check that the suite does not make here. For
// example, a host may answer in JSON what the server streams, so there is no stream to
// check.
func lost(direct, here []scenario) []string {
	var lines []string
	for i, d := range direct {
		if here[i].checks == nil && d.checks != nil {
			lines = append(lines, d.name+": has results without Dormouse")
		}
		for _, c := range d.checks {
			line := fmt.Sprintf("%s: %s succeeds without Dormouse", d.name, c.ID)
			good := d.says(c.ID, success) && !d.says(c.ID, failure, warning, skipped)
			if good && here[i].says(c.ID, failure, warning, skipped) && !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// row is one line of the table of lanes.
type row struct {
	lane    string
	results []scenario
}

// table counts scenarios by verdict, scored and not, and checks by status.
func table(rows []row) string {
	var text, lines strings.Builder
	lines.WriteString("lane\tscored ok/warn/FAIL/vacuous\tnot scored ok/warn/FAIL/vacuous\tchecks passed/warn/failed/skipped\n")
	for _, r := range rows {
		scored, rest, checks := map[verdict]int{}, map[verdict]int{}, map[string]int{}
		for _, s := range r.results {
			if s.scored {
				scored[s.verdict()]++
			} else {
				rest[s.verdict()]++
			}
			for _, status := range []string{success, warning, failure, skipped} {
				checks[status] += s.count(status)
			}
		}
		fmt.Fprintf(&lines, "%s\t%s\t%s\t%d/%d/%d/%d\n", r.lane, verdicts(scored), verdicts(rest),
			checks[success], checks[warning], checks[failure], checks[skipped])
	}
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = w.Write([]byte(lines.String())) // a strings.Builder takes everything
	_ = w.Flush()
	return text.String()
}

func verdicts(n map[verdict]int) string {
	return fmt.Sprintf("%d/%d/%d/%d", n[passed], n[warned], n[failed], n[vacuous])
}
