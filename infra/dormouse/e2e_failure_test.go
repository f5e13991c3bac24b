//go:build e2e

package dormouse_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// toldWithin is how long after the end of a server its client may wait for the error.
const toldWithin = 2 * time.Second

// A package runner that downloads what it starts takes a minute the first time.
const slowStart = time.Minute

func TestE2EBrokenServers(t *testing.T) {
	t.Parallel()
	program := stdio(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	run := func(flags ...string) map[string]any { return map[string]any{"command": program, "args": flags} }
	hanging := run("-hang", "-starts", at("hangs"))
	hanging["x-dormouse"] = map[string]any{"startup_timeout_sec": 1}
	m := machineOf(t, map[string]any{
		"missing": map[string]any{"command": "no-such-program-anywhere"},
		"exits":   run("-starts", at("exits"), "-stderr", "first line\nno license found\n", "-exit", "3"),
		"hangs":   hanging,
		"noisy":   run("-noise"),
		"slow":    run("-delay", slowStart.String()),
		"breaks":  run("-exit-while", at("broken"), "-starts", at("breaks")),
	})
	m.start()

	slow, begun := make(chan error, 1), time.Now()
	c := m.client("slow")
	c.patient = slowStart + patience
	go func() { slow <- c.slowly() }()

	t.Run("command not found", func(t *testing.T) {
		_, f := m.in(t).refused("missing", m.boxReady("missing"))
		if f.Data.Phase != "process_start" || f.Data.ExitCode != nil || !strings.Contains(f.Message, "no-such-program-anywhere") {
			t.Errorf("refused with %+v, want phase process_start, no exit code, and the command named", f)
		}
	})
	t.Run("exits at once", func(t *testing.T) {
		_, f := m.in(t).refused("exits", modified(at("exits")))
		if f.Data.Phase != "process_start" || f.Data.ExitCode == nil || *f.Data.ExitCode != 3 {
			t.Errorf("refused with %+v, want phase process_start and exit code 3", f)
		}
		if f.Data.Stderr != "first line\nno license found" || !strings.Contains(f.Message, "no license found") {
			t.Errorf("stderr is %q in %q, want both lines, the last in the message", f.Data.Stderr, f.Message)
		}
		if n := strings.Count(read(t, at("exits")), "\n"); n != 1 {
			t.Errorf("the server was started %d times for one request, want 1", n)
		}
	})
	t.Run("never answers", func(t *testing.T) {
		took, f := m.in(t).refused("hangs", func() time.Time { return modified(at("hangs"))().Add(time.Second) })
		if f.Data.Phase != "mcp_init" || !strings.Contains(f.Message, "startup_timeout_sec") || took < time.Second {
			t.Errorf("refused after %s with %+v, want after startup_timeout_sec in phase mcp_init, the setting named", took, f)
		}
	})
	t.Run("noise on stdout", func(t *testing.T) {
		c := m.in(t).session("noisy")
		if got := c.text("echo", `{"text":"signal"}`); got != "signal" {
			t.Errorf("echo said %q through the noise", got)
		}
	})
	t.Run("breaks between two messages", func(t *testing.T) { m.in(t).breaks(at("broken")) })
	t.Run("exits during a call", func(t *testing.T) {
		c := m.in(t).session("breaks")
		before := c.whoami().PID
		f, err := failureOf(c.outcome("exit", `{"code":17}`))
		if err != nil || f.Data.Phase != "runtime" || f.Data.ExitCode == nil || *f.Data.ExitCode != 17 || f.Data.Stderr != "told to exit" {
			t.Errorf("the call ended with %+v, %v, want phase runtime, exit code 17 and stderr", f, err)
		}
		if after := c.whoami().PID; after == before {
			t.Errorf("process %d answers after it has exited", after)
		}
	})
	t.Run("slow start", func(t *testing.T) {
		if err := <-slow; err != nil {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		if took := time.Since(begun); took < slowStart {
			t.Errorf("a server that takes %s to start has answered after %s", slowStart, took)
		}
	})
}

// refused sends an initialize that must fail. It checks that the error comes soon after
// the moment that end returns, and that no session is opened.
func (m *machine) refused(server string, end func() time.Time) (took time.Duration, f failure) {
	m.t.Helper()
	begun := time.Now()
	c := m.client(server)
	s, err := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":"first","method":"initialize","params":%s}`, params))
	if err != nil {
		m.t.Fatal(err)
	}
	defer s.close()
	answer, err := s.response(`"first"`)
	if err != nil {
		m.t.Fatalf("status %d: %v", s.status, err)
	}
	took = time.Since(begun)
	if late := time.Since(end()); late > toldWithin {
		m.t.Errorf("told %s after the end, want at most %s", late, toldWithin)
	}
	if f, err = failureOf(answer); err != nil {
		m.t.Fatal(err)
	}
	if s.status != http.StatusOK {
		m.t.Errorf("status %d, want 200: the error is the server's answer", s.status)
	}
	if id := s.header.Get(wire.HeaderSessionID); id != "" && s.events == nil {
		m.t.Errorf("a session %s was opened for a server that does not start", id)
	}
	return took, f
}

// boxReady returns a function that returns when the box of a server was ready.
func (m *machine) boxReady(server string) func() time.Time {
	return func() time.Time {
		return m.await(time.Second, "box of "+server, func(e event) bool { return e.Kind == "box.wake" && e.Name == server }).Time
	}
}

// modified returns a function that returns when a server wrote a file.
func modified(file string) func() time.Time {
	return func() time.Time {
		info, err := os.Stat(file)
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
}

// slowly opens a session with the slow server and makes a call.
func (c *client) slowly() error {
	if err := c.open(params); err != nil {
		return err
	}
	messages, err := c.call("echo", `{"text":"at last"}`)
	if err != nil {
		return err
	}
	if got := textOf(messages[len(messages)-1]); got != "at last" {
		return fmt.Errorf("echo said %q", got)
	}
	return nil
}

// breaks makes a working server fail at its next start. A call of its session reports
// that, and the session works again when the server is repaired.
func (m *machine) breaks(broken string) {
	m.t.Helper()
	c := m.session("breaks")
	pid := c.whoami().PID
	write(m.t, broken, "")
	m.kill(process{pid: pid})
	m.eventually(5*time.Second, "the runner has seen the end of its server", func() bool {
		for _, p := range m.ps().Processes {
			if p.PID == pid {
				return p.State == "exited"
			}
		}
		return false
	})
	f, err := failureOf(c.outcome("count", ""))
	if err != nil || f.Data.Phase != "process_start" || f.Data.ExitCode == nil || *f.Data.ExitCode != 9 || !strings.Contains(f.Data.Stderr, "found "+broken) {
		m.t.Errorf("a call to a broken server ended with %+v, %v, want phase process_start, exit code 9 and stderr", f, err)
	}
	if err := os.Remove(broken); err != nil {
		m.t.Fatal(err)
	}
	if got := c.text("count", ""); got != "1" {
		m.t.Errorf("the counter of the mended server says %s, want 1", got)
	}
}
