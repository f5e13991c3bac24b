//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// sleepy returns the flags of a machine that should sleep soon.
func sleepy() []string {
	return []string{"--idle", idle.String()}
}

// startedAnew waits for the log line that an existing session got a fresh process.
func (m *machine) startedAnew(session string) {
	m.t.Helper()
	m.awaitLine(m.log, patience, "the log says that the process was started anew", func(line string) bool {
		var l struct {
			Session   string `json:"session_id"`
			Restarted bool
		}
		return json.Unmarshal([]byte(line), &l) == nil && l.Session == session && l.Restarted
	})
}

func TestE2ESessionOutlivesEveryProgram(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"http", "relay", "runner", "stdio"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, servers{"one": nil}).asPrograms()
			m.start()
			c := m.session("one")
			before := c.whoami()
			switch program {
			case "http", "relay":
				m.killFunctions(program)
			case "stdio":
				m.kill(m.only(program))
				m.eventually(patience, "the runner has noticed", func() bool { return len(m.ps().Boxes[0].Processes) == 0 })
			case "runner":
				m.kill(m.only(program))
				m.await(patience, "the fleet has noticed", func(e event) bool { return e.Kind == "box.crash" })
			}
			after := c.whoami()
			if gone := program == "runner" || program == "stdio"; gone != (after.PID != before.PID) {
				t.Errorf("%s was killed: the server's process was %d and is %d", program, before.PID, after.PID)
			}
			if string(after.Init) != params {
				t.Errorf("initialize parameters are %s, want the client's", after.Init)
			}
		})
	}
}

func TestE2ENothingRunsAfterTheLastMessage(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start(sleepy()...)
	if all := m.processes(); len(all) != 1 {
		t.Fatalf("before the first message there are %v, want dormouse alone", all)
	}
	c := m.session("one")
	c.text("count", "")
	m.host()
	m.only("stdio")

	m.eventually(sleepAfter+time.Second, "no function runs", func() bool { return len(m.those("http", "relay", "sweep")) == 0 })
	m.host() // the box has its own, longer time
	m.only("stdio")
	m.asleep()
	m.await(patience, "the server is said to sleep", func(e event) bool { return e.Kind == "server.asleep" }) // comes last
	zero := m.await(patience, "the end of the last process is told", func(e event) bool { return e.Kind == "process.count" })
	if zero.Running != 0 {
		t.Errorf("process.count says %d processes", zero.Running)
	}
	m.quiet(3 * time.Second)

	m.wakesAnew(c)
}

// wakesAnew calls a sleeping server, whose new process knows nothing of the earlier calls, and
// waits until it sleeps again.
func (m *machine) wakesAnew(c *client) {
	m.t.Helper()
	if got := c.text("count", ""); got != "1" {
		m.t.Errorf("the counter says %s, want 1 in a process started anew", got)
	}
	m.startedAnew(c.session)
	m.asleep()
	for _, kind := range []string{"function.crash", "box.crash"} {
		if n := m.count(kind); n > 0 {
			m.t.Errorf("%d events %s, want none: everything ended by itself", n, kind)
		}
	}
}

// quiet checks that no event comes within span.
func (m *machine) quiet(span time.Duration) {
	m.t.Helper()
	before, more := m.out.lines()
	select {
	case <-more:
		lines, _ := m.out.lines()
		m.t.Errorf("something happened on a sleeping machine: %v", lines[len(before):])
	case <-time.After(span):
	}
}

func TestE2EOneWakeForManyCallers(t *testing.T) {
	t.Parallel()
	const callers = 20
	starts := filepath.Join(t.TempDir(), "starts")
	m := newMachine(t, servers{"one": {"-starts", starts}})
	m.start(sleepy()...)
	c := m.session("one")
	c.text("count", "")
	m.asleep()
	wakes, started := m.count("box.wake"), strings.Count(read(t, starts), "\n")

	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			// Each caller gets its own id and its own response.
			id, want := fmt.Sprintf(`"caller-%d"`, i), fmt.Sprintf("text of %d", i)
			s, err := c.post(c.request(id, "echo", fmt.Sprintf(`{"text":%q}`, want)))
			if err != nil {
				t.Error(err)
				return
			}
			messages, err := c.follow(t.Context(), s, id)
			if err != nil {
				t.Error(err)
				return
			}
			if len(messages) != 1 || textOf(messages[0]) != want {
				t.Errorf("request %s got %d messages, the last %s", id, len(messages), messages[len(messages)-1].Raw)
			}
		})
	}
	all.Wait()
	if n := m.wokenSince(wakes); n != 1 {
		t.Errorf("%d boxes were started for %d callers, want 1", n, callers)
	}
	if n := strings.Count(read(t, starts), "\n") - started; n != 1 {
		t.Errorf("%d server processes were started for %d callers, want 1", n, callers)
	}
}

func TestE2EInterruptLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start()
	c := m.session("one")
	gate := filepath.Join(t.TempDir(), "never")
	s, err := c.post(c.request("1", "work", fmt.Sprintf(`{"gate":%q,"before":1}`, gate)))
	commontest.OK(t, err)
	defer s.close()
	if progress, err := s.next(); err != nil || progress.Method != "notifications/progress" {
		t.Fatalf("the call has begun with %s, %v", progress.Raw, err)
	}

	if state := m.interrupt(); state.ExitCode() != 0 {
		t.Errorf("dormouse run ended with %v, want 0", state)
	}
	if left := m.processes(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	// The client resumes, whether or not it has seen the end of its call.
	m.start()
	s, err = m.again(c, "one").resume(s.last)
	commontest.OK(t, err)
	defer s.close()
	end, err := s.response("1")
	commontest.OKIn(t, "the call that was in flight has no end", err)
	if f, err := failureOf(end); err != nil || f.Data.Phase == "" || f.Code != int(wire.CodeOutcomeUnknown) || !strings.Contains(f.Message, "whether the call was executed is not known") {
		t.Errorf("the call that was in flight ended in %s, %v, want an error that its outcome is not known", end.Raw, err)
	}
}

func TestE2EDeleteEndsTheSessionAndItsProcess(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start()
	gone, stays := m.session("one"), m.session("one")
	goes, kept := gone.whoami().PID, stays.whoami().PID
	gone.leave()
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		if status, err := gone.status(method, ping); err != nil || status != http.StatusNotFound {
			t.Errorf("%s after DELETE: status %d, %v, want 404", method, status, err)
		}
	}
	alive := func() (pids []int) {
		for _, p := range m.those("stdio") {
			pids = append(pids, p.pid)
		}
		return pids
	}
	m.eventually(patience, fmt.Sprintf("process %d has stopped", goes), func() bool { return !slices.Contains(alive(), goes) })
	if got := stays.whoami().PID; got != kept {
		t.Errorf("the other session's process was %d and is %d", kept, got)
	}
}

// psReport is the output of dormouse ps --json.
type psReport struct {
	Running bool
	Servers []struct {
		Name, State string
		Boxes       int
	}
	Boxes []struct {
		Box, Server string
		PID         int
		Processes   []struct {
			PID     int
			Command string
		}
	}
	Processes []struct {
		Box, Process, State, Phase string
		PID, Restarts              int
	}
	Gateways []api.Gateway
	Sessions []struct {
		ID, Server, State, Client string
		Version                   string `json:"protocol_version"`
	} `json:"-"`
}

func (m *machine) ps() (r psReport) {
	m.t.Helper()
	m.printed(&r, "ps", "--json")
	m.printed(&r.Sessions, "sessions", "--json")
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
