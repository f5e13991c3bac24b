//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
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
	m := newMachine(t, servers{"one": nil}).asPrograms()
	m.start()
	c := m.session("one")
	for _, program := range []string{"http", "relay", "stdio", "runner"} {
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
		commontest.EqualIn(t, "after the kill of "+program+" the server is initialized with", params, string(after.Init))
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
	commontest.EqualIn(t, "process.count says", 0, zero.Running)
	m.quiet(time.Second)

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
	m := newMachine(t, servers{"one": nil})
	m.start(sleepy()...)
	c := m.session("one")
	m.asleep()
	wakes := m.count("box.wake")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			want := fmt.Sprintf("text of %d", i)
			if messages, err := c.call("echo", fmt.Sprintf(`{"text":%q}`, want)); err != nil || textOf(messages[len(messages)-1]) != want {
				t.Errorf("call %d got %v, %v", i, messages, err)
			}
		})
	}
	all.Wait()
	m.asleep()
	commontest.EqualIn(t, "boxes were started", 1, m.count("box.wake")-wakes)
	if m.programs { // their ledger reads the log, which has the first message of a session only
		return
	}
	var bill struct {
		Owners []struct {
			Name  string
			Units storage.Units
		}
	}
	out, err := m.command("bill", "--by", "tool", "--json").Output()
	commontest.OK(t, errors.Join(err, json.Unmarshal(out, &bill)))
	messages := map[string]float64{}
	for _, o := range bill.Owners {
		messages[o.Name] = o.Units.Messages
	}
	if messages["echo"] <= 20 { // one of each request, and those of the answers
		t.Errorf("the messages of the answers to 20 calls of echo are not billed for it: %s", out)
	}
}
