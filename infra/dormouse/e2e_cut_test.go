//go:build e2e

package dormouse_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// work is a call of the tool work that has begun: its stream is open and has shown its
// first progress. The tool continues when the file gate exists.
type work struct {
	*stream
	id, gate string
}

// begin calls the tool work, which sends progress three times before its gate and
// twice after it.
func (c *client) begin() work {
	c.t.Helper()
	w := work{id: c.id(), gate: filepath.Join(c.t.TempDir(), "gate")}
	s, err := c.post(c.request(w.id, "work", fmt.Sprintf(`{"gate":%q,"before":3,"after":2,"tag":"work"}`, w.gate)))
	commontest.OK(c.t, err)
	w.stream = s
	c.t.Cleanup(s.close)
	commontest.OK(c.t, s.primed())
	return w
}

// progress reads progress notifications, numbered from first to last.
func (w work) progress(t *testing.T, first, last int) {
	t.Helper()
	for n := first; n <= last; n++ {
		m, err := w.next()
		if err != nil {
			t.Fatalf("progress %d: %v", n, err)
		}
		if got := string(wire.Lookup(m.Params, "progress")); m.Method != wire.NotifyProgress || got != fmt.Sprint(n) {
			t.Fatalf("got %s, want progress %d", m.Raw, n)
		}
	}
}

// open lets the tool go on.
func (w work) open(t *testing.T) {
	t.Helper()
	write(t, w.gate, "")
}

// ended describes the messages that end a call: progress by its number, the response by
// its id.
func ended(messages []wire.Message) (all []string) {
	for _, m := range messages {
		switch {
		case m.Method == wire.NotifyProgress:
			all = append(all, "progress "+string(wire.Lookup(m.Params, "progress")))
		case m.Kind == wire.Response:
			all = append(all, "response "+string(m.ID))
		default:
			all = append(all, string(m.Raw))
		}
	}
	return all
}

// steps describes, like ended, a call that sends progress n times.
func steps(n int, id string) (all []string) {
	for i := 1; i <= n; i++ {
		all = append(all, fmt.Sprintf("progress %d", i))
	}
	return append(all, "response "+id)
}

// resumed continues a stream after an event and returns everything up to its end.
func (c *client) resumed(last string) []string {
	c.t.Helper()
	s, err := c.resume(last)
	commontest.OK(c.t, err)
	defer s.close()
	commontest.OK(c.t, s.primed())
	messages, err := s.messages()
	commontest.OK(c.t, err)
	return ended(messages)
}

// A client loses its connection in the middle of a call, and the functions that served it are
// killed. The client takes the call up where it was cut.
func TestE2ECutCallIsTakenUpThoughItsFunctionsAreKilled(t *testing.T) {
	t.Parallel()
	m := recorded(t).asPrograms()
	m.start()
	c := m.session("one")
	w := c.begin()
	start := w.last
	w.progress(t, 1, 2)
	w.close()
	m.killFunctions("http", "relay")
	s, err := c.resume(w.last)
	commontest.OK(t, err)
	defer s.close()
	commontest.OK(t, s.primed())
	w.open(t)
	rest, err := s.messages()
	commontest.OK(t, err)
	all := steps(5, w.id)
	commontest.SameIn(t, "after the cut", all[2:], ended(rest))
	commontest.SameIn(t, "behind the last event", []string(nil), c.resumed(s.last))
	commontest.SameIn(t, "from the beginning", all, c.resumed(start))
	commontest.EqualIn(t, "the tool was run", "work\n", read(t, m.calls))
}

// lossWithin is how long a call may stay open after its runner has been killed. The machine
// reports the end of a program that it started. Nothing reports the end of an invocation.
func (m *machine) lossWithin() time.Duration {
	if m.invokes() {
		return 90 * time.Second
	}
	return 30 * time.Second
}

func TestE2EKilledMachineEndsTheCallWhenItIsBack(t *testing.T) {
	t.Parallel()
	newMachine(t, servers{"one": nil}).killedInACall()
}

// killedInACall kills every process of a machine with these flags in the middle of a call.
// The next machine ends the call, and the session continues.
func (m *machine) killedInACall(flags ...string) {
	m.t.Helper()
	m.start(flags...)
	c := m.session("one")
	before := c.whoami()
	w := c.begin()
	w.progress(m.t, 1, 3)
	m.killAll()
	m.start(flags...)
	ctx, cancel := context.WithTimeout(m.t.Context(), m.lossWithin())
	defer cancel()
	c = m.again(c, "one")
	all, err := c.follow(ctx, w.stream, w.id)
	commontest.OKIn(m.t, "the call has no end", err)
	end := all[len(all)-1]
	if f, err := failureOf(end); err != nil || f.Data.Phase != "runtime" {
		m.t.Errorf("the call ended in %s, %v, want phase runtime", end.Raw, err)
	}
	after := c.whoami()
	if after.PID == before.PID || string(after.Init) != params {
		m.t.Errorf("the process is %d with %s, was %d; want another one with the client's parameters", after.PID, after.Init, before.PID)
	}
	m.startedAnew(c.session)
}
