//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// save writes the servers file of a running machine: the flags of the test server by
// name. It returns the event that says what has changed.
func (m *machine) save(hosted servers) event {
	m.t.Helper()
	return m.saveFile(hosted.file(m.t))
}

// saveFile is save with the whole content of mcpServers.
func (m *machine) saveFile(file map[string]any) event {
	m.t.Helper()
	text, err := json.Marshal(map[string]any{"mcpServers": file})
	commontest.OK(m.t, err)
	before := m.count("servers.changed")
	write(m.t, m.servers, string(text))
	return m.changed(before)
}

// changed waits for a servers.changed event after the first ones, whose number is before.
func (m *machine) changed(before int) event {
	m.t.Helper()
	return m.await(patience, "the file is taken", func(e event) bool {
		if e.Kind == "servers.changed" {
			before--
		}
		return before < 0
	})
}

// addressOf returns the URL of a server that was not there at the start.
func (m *machine) addressOf(name string) string {
	for known, url := range m.urls {
		return strings.Replace(url, "/"+known+"/", "/"+name+"/", 1)
	}
	return ""
}

// held is a call that waits for a file.
type held struct {
	t    *testing.T
	gate string
	done chan error
}

// hold begins a call and returns when its process has it.
func (m *machine) hold(c *client, calls string) *held {
	m.t.Helper()
	h := &held{t: m.t, gate: filepath.Join(m.t.TempDir(), "gate"), done: make(chan error, 1)}
	go func() {
		messages, err := c.call("work", fmt.Sprintf(`{"gate":%q,"tag":"held"}`, h.gate))
		if err == nil && textOf(messages[len(messages)-1]) != "worked" {
			err = fmt.Errorf("the call ended with %s", messages[len(messages)-1].Raw)
		}
		h.done <- err
	}()
	m.eventually(patience, "the call is in the process", func() bool { return strings.Contains(read(m.t, calls), "held") })
	return h
}

// finish lets the call end, and checks that it succeeds.
func (h *held) finish() {
	h.t.Helper()
	write(h.t, h.gate, "")
	commontest.Check(h.t, <-h.done)
}

// everyway runs a test with handlers in this process, and with function programs.
func everyway(t *testing.T, test func(t *testing.T, machine func(servers) *machine)) {
	t.Parallel()
	for name, programs := range map[string]bool{"inside": false, "as programs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, func(s servers) *machine {
				m := newMachine(t, s)
				m.programs = programs
				return m
			})
		})
	}
}

func TestE2EReloadRemovesAServer(t *testing.T) {
	everyway(t, func(t *testing.T, machine func(servers) *machine) {
		calls := filepath.Join(t.TempDir(), "calls")
		m := machine(servers{"old": {"-calls", calls}, "other": nil})
		m.start()
		c := m.session("old")
		call := m.hold(c, calls)
		if e := m.save(servers{"other": nil}); strings.Join(e.Removed, " ") != "old" {
			t.Errorf("the event is %+v", e)
		}
		status, body := m.refusal(m.urls["old"])
		if status != 404 || !strings.Contains(body, "server old was removed from the servers file at ") {
			t.Errorf("a new client gets %d %s", status, body)
		}
		if status, err := c.status("POST", `{"jsonrpc":"2.0","id":9,"method":"ping"}`); status != 404 || err != nil {
			t.Errorf("the session gets %d, %v", status, err)
		}
		call.finish()
		m.eventually(patience, "its processes have ended", func() bool { return len(m.those("stdio", "runner")) == 0 })
		if e := m.save(servers{"old": {"-calls", calls}, "other": nil}); strings.Join(e.Added, " ") != "old" {
			t.Errorf("the event is %+v", e)
		}
		commontest.EqualIn(t, "the session counts", "1", c.text("count", ""))
	})
}

func TestE2EReloadChangesAServer(t *testing.T) {
	everyway(t, func(t *testing.T, machine func(servers) *machine) {
		calls := filepath.Join(t.TempDir(), "calls")
		m := machine(servers{"one": {"-calls", calls}, "other": nil})
		m.start()
		c, idle, other := m.session("one"), m.session("one"), m.session("other")
		before := idle.whoami()
		neighbour := other.whoami().PID
		call := m.hold(c, calls)
		if e := m.save(servers{"one": {"-calls", calls, "-name", "changed"}, "other": nil}); strings.Join(e.Changed, " ") != "one" || !strings.Contains(e.Detail, "args") {
			t.Errorf("the event is %+v", e)
		}
		m.awaitLine(m.log, patience, "the runner hears of it", func(line string) bool { return strings.Contains(line, `"retiring`) })
		call.finish()
		for name, c := range map[string]*client{"that called": c, "that was idle": idle} {
			if got := c.whoami(); got.Name != "changed" || got.PID == before.PID {
				t.Errorf("the session %s has %+v, before it was %+v", name, got, before)
			}
		}
		if got := other.whoami().PID; got != neighbour {
			t.Errorf("the process of the other server is %d, was %d", got, neighbour)
		}
	})
}

// A client that listens is notified of new tools once its session gets its next message.
func TestE2EReloadTellsListeners(t *testing.T) {
	everyway(t, func(t *testing.T, machine func(servers) *machine) {
		m := machine(servers{"one": {"-announces"}})
		m.start()
		c := m.session("one")
		was := c.whoami().PID
		ctx, cancel := c.patience()
		defer cancel()
		listen, err := c.send(ctx, http.MethodGet, "", "")
		commontest.OK(t, err)
		defer listen.close()
		m.save(servers{"one": {"-announces", "-name", "changed"}})
		m.eventually(patience, "the process has ended", func() bool { return len(m.those("stdio")) == 0 })
		if got := c.whoami(); got.PID == was || got.Name != "changed" {
			t.Errorf("the session has %+v", got)
		}
		for {
			heard, err := listen.next()
			if errors.Is(err, io.EOF) { // function programs hold a response for a while only
				last := listen.last
				listen.close()
				if listen, err = c.send(ctx, http.MethodGet, last, ""); err == nil {
					continue
				}
			}
			commontest.OK(t, err)
			if heard.Method == wire.NotifyToolsChanged {
				return
			}
		}
	})
}

func TestE2EReloadOfATimeoutKeepsTheProcess(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil}).withRunners()
	m.start()
	c := m.session("one")
	was := c.whoami().PID
	program := stdio(t)
	e := m.saveFile(map[string]any{"one": map[string]any{"command": program, "args": []string{"-name", "one"}, "x-dormouse": map[string]any{"tool_timeout_sec": 7}}})
	if strings.Join(e.Changed, " ") != "one" || !strings.Contains(e.Detail, "timeouts") {
		t.Errorf("the event is %+v", e)
	}
	m.awaitLine(m.log, patience, "the runner has asked twice", func(line string) bool {
		return strings.Contains(line, "welcomed by the host") && strings.Contains(line, `"link":3`)
	})
	if got := c.whoami().PID; got != was {
		t.Errorf("the process is %d, was %d", got, was)
	}
}

func TestE2EReloadOfDotEnv(t *testing.T) {
	t.Parallel()
	program := stdio(t)
	m := machineOf(t, map[string]any{
		"uses":  map[string]any{"command": program, "args": []string{"-name", "uses", "-stderr", "${WORD}"}},
		"other": map[string]any{"command": program, "args": []string{"-name", "other"}},
	})
	env := filepath.Join(filepath.Dir(m.servers), ".env")
	write(t, env, "WORD=one\n")
	m.start()
	uses, other := m.session("uses"), m.session("other")
	before, neighbour := uses.whoami().PID, other.whoami().PID
	write(t, env, "WORD=another\nMORE=1\n")
	if e := m.changed(0); strings.Join(e.Changed, " ") != "uses" || strings.Contains(e.Detail, "another") {
		t.Errorf("the event is %+v", e)
	}
	// A box that is awake and has nothing to do ends soon after the change, not when it would
	// have slept.
	m.eventually(patience, "its processes have ended", func() bool { return len(m.those("stdio")) == 1 && len(m.ps().Boxes) == 1 })
	if got := uses.whoami().PID; got == before {
		t.Errorf("the process of the server that uses it is still %d", got)
	}
	if got := other.whoami().PID; got != neighbour {
		t.Errorf("the process of the other server is %d, was %d", got, neighbour)
	}
}

func TestE2EReloadOfABrokenFile(t *testing.T) {
	everyway(t, func(t *testing.T, machine func(servers) *machine) {
		m := machine(servers{"one": nil, "two": nil})
		m.start()
		var calls, failed atomic.Int64
		over := make(chan struct{})
		var work sync.WaitGroup
		for _, c := range []*client{m.session("one"), m.session("one"), m.session("two")} {
			work.Go(func() {
				for {
					select {
					case <-over:
						return
					default:
					}
					calls.Add(1)
					if _, err := c.call("count", ""); err != nil {
						failed.Add(1)
						t.Error(err)
					}
				}
			})
		}
		write(t, m.servers, "{\n  \"mcpServers\": {\n    \"one\": {\"command\": \"x\" \"args\"}\n  }\n}\n")
		e := m.await(patience, "the mistake is told", func(e event) bool { return e.Kind == "servers.refused" })
		if want := "3:28: not JSON: a comma is missing before this; what was there before is still served"; e.Name != "servers.json" || e.Detail != want {
			t.Errorf("the event is %+v, want %s", e, want)
		}
		if out, err := m.command("reload").CombinedOutput(); err == nil || !strings.Contains(string(out), "a comma is missing") {
			t.Errorf("reload says %s, %v", out, err)
		}
		saved := time.Now()
		if e := m.save(servers{"one": nil, "two": nil, "three": nil}); e.Time.Sub(saved) > 2*time.Second || strings.Join(e.Added, " ") != "three" || e.Changed != nil {
			t.Errorf("the mended file is served after %s: %+v", e.Time.Sub(saved), e)
		}
		m.urls["three"] = m.addressOf("three")
		m.session("three")
		close(over)
		work.Wait()
		if n := m.count("servers.refused"); n != 1 {
			t.Errorf("the mistake is told %d times", n)
		}
		if failed.Load() > 0 || calls.Load() < 10 {
			t.Errorf("%d of %d calls have failed", failed.Load(), calls.Load())
		}
	})
}

// A server that is removed and added again is not answered by the process of before, whether
// its entry is the same or another one.
func TestE2EAServerThatIsAddedAgainHasANewProcess(t *testing.T) {
	t.Parallel()
	m, _, _ := modernMachine(t)
	m.programs = false
	m.env = append(m.env, "DORMOUSE_DATA="+m.data)
	m.start()
	c := m.client("booking")
	pid := func() string {
		return textOf(c.served(wire.MethodToolsCall, "pid", `"name":"pid","arguments":{}`, "{}"))
	}
	before := pid()
	for _, args := range [][]string{{"-name", "again"}, {"-name", "again"}, {"-name", "other"}} {
		m.does("remove", "booking", "--servers", m.servers)
		m.does("add", append([]string{"booking", "--no-start", "--no-pin", "--servers", m.servers, "--data", m.data, "--", modern(t)}, args...)...)
		now := pid()
		if now == before {
			t.Errorf("the process of before answers as %v", args)
		}
		before = now
	}
}
