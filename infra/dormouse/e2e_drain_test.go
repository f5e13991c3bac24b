//go:build e2e

package dormouse_test

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// refuses reports whether the endpoint takes no new connection.
func (m *machine) refuses(server string) bool {
	m.t.Helper()
	at, err := url.Parse(m.urls[server])
	commontest.OK(m.t, err)
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(m.t.Context(), "tcp", at.Host)
	if err == nil {
		_ = conn.Close()
	}
	return err != nil
}

func (m *machine) terminate() {
	m.t.Helper()
	commontest.OK(m.t, m.cmd.Process.Signal(syscall.SIGTERM))
}

// SIGTERM lets the calls in flight end before the machine does. Sessions whose processes
// have nothing in flight do not wait.
func TestE2ETermWaitsForCallsInFlight(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil, "two": nil})
	m.start()
	m.session("two").text("count", "")
	c := m.session("one")
	w := c.begin()
	w.progress(t, 1, 3)
	over := m.talk("one")
	gate := filepath.Join(t.TempDir(), "gate")
	id := over.ask("work", fmt.Sprintf(`{"gate":%q,"before":1,"after":0,"tag":"socket"}`, gate))
	commontest.EqualIn(t, "the call over the WebSocket begins with", wire.NotifyProgress, over.hear().Method)
	m.awaitLine(m.log, patience, "no function waits for the call over the WebSocket", func(line string) bool {
		return strings.Contains(line, `"msg":"socket"`) && strings.Contains(line, `"outcome":"open"`)
	})
	m.terminate()
	m.awaitLine(m.log, patience, "the operator is told of both calls", func(line string) bool {
		return strings.Contains(line, `"msg":"the machine drains","calls":2,"suspended":0`)
	})
	m.eventually(patience, "no new connection is taken", func() bool { return m.refuses("one") })
	write(t, gate, "")
	if got := over.end(id); got.Error != nil {
		t.Errorf("the call over the WebSocket ended with %s", got.Raw)
	}
	m.eventually(patience, "the process without a call has ended", func() bool { return len(m.those("stdio")) == 1 })
	w.open(t)
	ctx, cancel := c.patience()
	defer cancel()
	messages, err := c.follow(ctx, w.stream, w.id)
	commontest.OK(t, err)
	commontest.Same(t, []string{"progress 4", "progress 5", "response " + w.id}, ended(messages))
	commontest.EqualIn(t, "the exit code of dormouse run", 0, m.ended(patience).ExitCode())
	if left := m.processes(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Ctrl-C and a second SIGTERM do not wait: the call ends with an error that says that its outcome
// is not known, and its client gets that, whenever it comes back.
func TestE2EEndsThatDoNotWaitEndCalls(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*machine){
		"Ctrl-C": func(m *machine) { commontest.OK(m.t, m.cmd.Process.Signal(os.Interrupt)) },
		"a second SIGTERM": func(m *machine) {
			m.terminate()
			m.eventually(patience, "no new connection is taken", func() bool { return m.refuses("one") })
			m.terminate()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, servers{"one": nil})
			m.start()
			c := m.session("one")
			w := c.begin()
			w.progress(t, 1, 3)
			end(m)
			commontest.EqualIn(t, "exit code", 0, m.ended(20*time.Second).ExitCode()) // who waits for calls waits for 30 s
			if left := m.processes(); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			m.start()
			s, err := m.again(c, "one").resume(w.last)
			commontest.OK(t, err)
			defer s.close()
			last, err := s.response(w.id)
			commontest.OKIn(t, "the call that was in flight has no end", err)
			if f, err := failureOf(last); err != nil || f.Data.Phase == "" || f.Code != int(wire.CodeOutcomeUnknown) {
				t.Errorf("the call that was in flight ended in %s, %v, want an error that its outcome is not known", last.Raw, err)
			}
		})
	}
}
