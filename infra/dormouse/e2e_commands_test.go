//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// does executes a command in the folder of the servers file, and returns what it printed.
func (m *machine) does(verb string, args ...string) string {
	m.t.Helper()
	out, err := m.tries(verb, args...)
	if err != nil {
		m.t.Fatalf("dormouse %s: %v: %s", verb, err, out)
	}
	return out
}

// tries is does for a command that may fail.
func (m *machine) tries(verb string, args ...string) (string, error) {
	cmd := m.command(verb, args...)
	if slices.Contains([]string{"check", "disable", "enable", "remove"}, verb) {
		cmd.Args = append(cmd.Args[:2:2], args...) // they have no data folder
	}
	cmd.Dir = filepath.Dir(m.servers)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// keys runs dormouse keys on the data of this machine and returns the output.
func (m *machine) keys(verb string, args ...string) string {
	m.t.Helper()
	cmd := m.command("keys "+verb, args...)
	var says strings.Builder
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil {
		m.t.Fatalf("dormouse keys %s: %v: %s", verb, err, says.String())
	}
	return strings.TrimSpace(string(out))
}

// operate runs a command of dormouse and returns its whole output and its exit code.
func operate(t *testing.T, args ...string) (printed string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "dormouse"), args...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		code = exit.ExitCode()
	}
	return string(out), code
}

// psReport has of the output of dormouse ps --json what tests look at.
type psReport struct {
	Boxes []struct {
		PID       int
		Processes []struct{ PID int }
	}
}

func (m *machine) ps() (r psReport) {
	m.t.Helper()
	m.printed(&r, "ps", "--json")
	return r
}

// printed decodes what a command prints, even if dormouse run is not up.
func (m *machine) printed(into any, command string, args ...string) {
	m.t.Helper()
	out, err := m.command(command, args...).Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 3) {
		m.t.Fatalf("dormouse %s: %v", command, err)
	}
	commontest.OKIn(m.t, fmt.Sprintf("dormouse %s printed %s", command, out), json.Unmarshal(out, into))
}
