//go:build e2e

package dormouse_test

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
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
	if got, err := over.hear(); err != nil || got.Method != wire.NotifyProgress {
		t.Fatalf("%s, %v", got.Raw, err)
	}
	m.awaitLine(m.log, patience, "no function waits for the call over the WebSocket", func(line string) bool {
		return strings.Contains(line, `"msg":"socket"`) && strings.Contains(line, `"outcome":"open"`)
	})
	m.terminate()
	m.awaitLine(m.log, patience, "the operator is told of both calls", func(line string) bool {
		return strings.Contains(line, `"msg":"the machine drains","calls":2,"suspended":0`)
	})
	m.eventually(patience, "no new connection is taken", func() bool { return m.refuses("one") })
	write(t, gate, "")
	if got, err := over.hear(); err != nil || string(got.ID) != id || got.Error != nil {
		t.Errorf("the call over the WebSocket ended with %s, %v", got.Raw, err)
	}
	m.eventually(patience, "the process without a call has ended", func() bool { return len(m.those("stdio")) == 1 })
	w.open(t)
	ctx, cancel := c.patience()
	defer cancel()
	messages, err := c.follow(ctx, w.stream, w.id)
	commontest.OK(t, err)
	commontest.Same(t, []string{"progress 4", "progress 5", "response " + w.id}, ended(messages))
	if state := m.ended(patience); state.ExitCode() != 0 {
		t.Errorf("dormouse run ended with %v, want 0", state)
	}
	if left := m.processes(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Nobody waits for a client that only listens. A call of 2026-07-28 that has asked its client
// is in the store, and the operator is told so.
func TestE2ETermDoesNotWaitForListeners(t *testing.T) {
	t.Parallel()
	m, _, _ := modernMachine(t)
	m.programs = false
	m.start()
	s := m.talk("booking")
	s.ask("book", "{}")
	if q, err := s.hear(); err != nil || q.Method != wire.MethodElicit {
		t.Fatalf("%s, %v", q.Raw, err)
	}
	c := m.client("booking")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"e2e","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`))
	commontest.OK(t, err)
	r.Header.Set(wire.HeaderProtocolVersion, "2026-07-28")
	r.Header.Set(wire.HeaderMethod, wire.MethodListen)
	listens, err := c.do(r)
	commontest.OK(t, err)
	defer listens.close()
	if first, err := listens.next(); err != nil || first.Kind != wire.Notification {
		t.Fatalf("it does not listen: %d %s, %v", listens.status, first.Raw, err)
	}
	m.terminate()
	m.awaitLine(m.log, patience, "the operator is told", func(line string) bool {
		return strings.Contains(line, `"msg":"the machine drains"`) && strings.Contains(line, `"suspended":1`)
	})
	m.ended(patience)
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
	m.eventually(patience, "no new connection is taken", func() bool { return m.refuses("one") })
	m.terminate()
	ctx, cancel := c.patience()
	defer cancel()
	messages, err := c.follow(ctx, w.stream, w.id)
	commontest.OK(t, err)
	if last := messages[len(messages)-1]; last.Kind != wire.Response || last.Error == nil {
		t.Errorf("the call ended with %s", last.Raw)
	}
	m.ended(patience)
	m.start()
	if said := m.does("calls", "--failed"); !strings.Contains(said, "work") {
		t.Errorf("the call that was cut is not among the failed ones:\n%s", said)
	}
}
