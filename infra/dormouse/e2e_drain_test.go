//go:build e2e

package dormouse_test

import (
	"net"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// refuses reports whether the endpoint takes no new connection.
func (m *machine) refuses(server string) bool {
	m.t.Helper()
	at, err := url.Parse(m.urls[server])
	if err != nil {
		m.t.Fatal(err)
	}
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(m.t.Context(), "tcp", at.Host)
	if err == nil {
		_ = conn.Close()
	}
	return err != nil
}

func (m *machine) terminate() {
	m.t.Helper()
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		m.t.Fatal(err)
	}
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
	m.terminate()
	m.eventually(10*time.Second, "no new connection is taken", func() bool { return m.refuses("one") })
	m.eventually(20*time.Second, "the process without a call has ended", func() bool { return len(m.those("stdio")) == 1 })
	w.open(t)
	ctx, cancel := c.patience()
	defer cancel()
	messages, err := c.follow(ctx, w.stream, w.id)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"progress 4", "progress 5", "response " + w.id}, ended(messages)); diff != "" {
		t.Error(diff)
	}
	if state := m.ended(25 * time.Second); state.ExitCode() != 0 {
		t.Errorf("dormouse run ended with %v, want 0", state)
	}
	if left := m.processes(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A second SIGTERM does not wait: the call ends with an error that says that its outcome is
// not known.
func TestE2EASecondTermDoesNotWait(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.programs = false // the stand-in of the gateway ends its responses with the program
	m.start()
	c := m.session("one")
	w := c.begin()
	w.progress(t, 1, 3)
	m.terminate()
	m.eventually(10*time.Second, "no new connection is taken", func() bool { return m.refuses("one") })
	m.terminate()
	ctx, cancel := c.patience()
	defer cancel()
	messages, err := c.follow(ctx, w.stream, w.id)
	if err != nil {
		t.Fatal(err)
	}
	if last := messages[len(messages)-1]; last.Kind != wire.Response || last.Error == nil {
		t.Errorf("the call ended with %s", last.Raw)
	}
	m.ended(25 * time.Second)
}
