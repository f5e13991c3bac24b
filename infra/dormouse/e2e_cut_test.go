//go:build e2e

package dormouse_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

func TestE2ECutCallIsTakenUpWhereItWasCut(t *testing.T) {
	t.Parallel()
	m := recorded(t)
	m.start()
	m.cutInACall(func(p *proxy) { p.cut() })
}

// cutInACall cuts a call in its middle, and takes the call up again.
func (m *machine) cutInACall(cut func(*proxy)) {
	m.t.Helper()
	c := m.session("one")
	p := c.through(m.t)

	w := c.begin()
	start := w.last
	w.progress(m.t, 1, 2)
	cut(p)
	if more, err := w.messages(); err == nil {
		m.t.Fatalf("the connection was cut, but its response ended well, with %v", ended(more))
	}
	s, err := c.resume(w.last) // the third progress may have come before the cut
	commontest.OK(m.t, err)
	defer s.close()
	commontest.OK(m.t, s.primed())
	w.open(m.t)
	rest, err := s.messages()
	commontest.OK(m.t, err)
	all := steps(5, w.id)
	if diff := cmp.Diff(all[len(all)-len(rest):], ended(rest)); diff != "" || len(rest) < 3 {
		m.t.Errorf("after the cut (-want +got):\n%s", diff)
	}

	// A client that resumes after the last event gets nothing.
	if got := c.resumed(s.last); len(got) > 0 {
		m.t.Errorf("behind the last event came %v, want nothing", got)
	}
	if diff := cmp.Diff(all, c.resumed(start)); diff != "" {
		m.t.Errorf("from the beginning (-want +got):\n%s", diff)
	}
	if got := read(m.t, m.calls); got != "work\n" {
		m.t.Errorf("the tool was run as %q, want once", got)
	}
}

func TestE2ECutAtEveryByteLosesNothing(t *testing.T) {
	t.Parallel()
	m := recorded(t)
	m.start()
	c := m.session("one")
	p := c.through(t)

	// First get the whole response, to know its length.
	if got := c.cutCall(t, "whole"); !cmp.Equal(got, []string{"progress 1", "progress 2"}) {
		t.Fatalf("uncut call: %v", got)
	}
	whole := p.behindCursor()
	if whole == 0 {
		t.Fatal("the call was not answered with an event stream")
	}
	want := []string{"whole"}
	for n := range whole + 1 {
		p.cutAt(n)
		tag := fmt.Sprintf("cut at %d", n)
		want = append(want, tag)
		if got := c.cutCall(t, tag); !cmp.Equal(got, []string{"progress 1", "progress 2"}) {
			t.Errorf("%s of %d bytes behind the cursor: %v", tag, whole, got)
		}
	}
	commontest.SameIn(t, "tools that were run", strings.Join(want, "\n")+"\n", read(t, m.calls))
}

// cutCall makes a call whose response may be cut anywhere after its cursor, continues it,
// and returns the progress of both parts. It checks that there is exactly one response.
func (c *client) cutCall(t *testing.T, tag string) (progress []string) {
	t.Helper()
	id := c.id()
	s, err := c.post(c.request(id, "work", fmt.Sprintf(`{"before":2,"tag":%q}`, tag)))
	if err != nil {
		t.Fatalf("%s: %v", tag, err)
	}
	messages, err := c.follow(t.Context(), s, id)
	if err != nil {
		t.Fatalf("%s: %v", tag, err)
	}
	for i, what := range ended(messages) {
		switch {
		case i < len(messages)-1:
			progress = append(progress, what)
		case what != "response "+id:
			t.Errorf("%s: ended in %s", tag, what)
		}
	}
	return progress
}

func TestE2EKilledFunctionLosesNothing(t *testing.T) {
	t.Parallel()
	m := recorded(t).asPrograms()
	m.start()
	m.cutInACall(func(*proxy) { m.killFunctions("http", "relay") })
}

// lossWithin is how long a call may stay open after its runner has been killed. The machine
// reports the end of a program that it started. Nothing reports the end of an invocation.
func (m *machine) lossWithin() time.Duration {
	if m.invokes() {
		return 90 * time.Second
	}
	return 30 * time.Second
}

func TestE2EKilledProgramEndsItsCall(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		program string
		gone    bool // the client has gone before the kill, so no function waits
	}{
		"runner, waiting": {"runner", false}, "runner, polled": {"runner", true}, "server": {"stdio", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, servers{"one": nil})
			if test.program == "runner" {
				m.withRunners()
			}
			m.start()
			c := m.session("one")
			w := c.begin()
			w.progress(t, 1, 3)
			last := w.last
			if test.gone {
				w.close()
			}
			m.kill(m.only(test.program))
			ctx, cancel := context.WithTimeout(t.Context(), m.lossWithin())
			defer cancel()
			all, err := c.follow(ctx, w.stream, w.id)
			commontest.OKIn(t, "the call has no end", err)
			wantKilled(t, all[len(all)-1], test.program == "stdio" || !m.invokes())
			if got := c.resumed(last); !cmp.Equal(got, []string{"response " + w.id}) {
				t.Errorf("the client that comes once more gets %v, want the one end", got)
			}
			if test.program == "stdio" {
				m.host() // the box is well
			}
			commontest.EqualIn(t, "the next call got", "and on", c.text("echo", `{"text":"and on"}`))
			m.only("stdio") // the killed box's process ended with it
		})
	}
}

// A new box must not hide the end of the previous one. The first call was in flight for
// less than a second, so only the function that waits for it knows of it.
func TestE2EKilledRunnerIsNamedByALaterBox(t *testing.T) {
	t.Parallel()
	m := recorded(t).withRunners()
	m.start()
	struck, others := m.session("one"), m.session("one")
	others.text("count", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := make(chan wire.Message, 1)
	go func() {
		defer close(end)
		id := struck.id()
		s, err := struck.send(ctx, http.MethodPost, "", struck.request(id, "work", fmt.Sprintf(`{"gate":%q,"tag":"struck"}`, m.calls+".never")))
		var messages []wire.Message
		if err == nil {
			messages, err = struck.follow(ctx, s, id)
		}
		if err != nil {
			t.Errorf("the call has no end: %v", err)
			return
		}
		end <- messages[len(messages)-1]
	}()
	m.eventually(patience, "the call has begun", func() bool { return strings.Contains(read(t, m.calls), "struck") })
	m.kill(m.only("runner"))
	time.AfterFunc(m.lossWithin(), cancel)
	wakes := m.count("box.wake")
	var all sync.WaitGroup
	waiting := make(chan struct{}, 8)
	m.eventually(m.lossWithin(), "another call has woken the box", func() bool {
		select {
		case waiting <- struct{}{}:
			all.Go(func() {
				// It does not matter whether the call has reached the dying box.
				if _, err := others.call("count", ""); err != nil {
					t.Error(err)
				}
				<-waiting
			})
		default: // the calls that wait are enough
		}
		return m.count("box.wake") > wakes
	})
	if end, ok := <-end; ok {
		wantKilled(t, end, !m.invokes())
	}
	all.Wait()
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

// wantKilled checks the end of a call whose executor was killed. reported says that the
// signal is known.
func wantKilled(t *testing.T, end wire.Message, reported bool) {
	t.Helper()
	f, err := failureOf(end)
	commontest.OK(t, err)
	signal, text := "", "the box is gone"
	if reported {
		signal, text = "SIGKILL", "SIGKILL"
	}
	if f.Data.Phase != "runtime" || f.Data.Signal != signal || !strings.Contains(f.Message, text) {
		t.Errorf("the call ended in %s, want phase runtime, signal %q and %q in its message", end.Raw, signal, text)
	}
	if f.Data.ExitCode != nil {
		t.Errorf("the error tells exit code %d beside what ended the box: %s", *f.Data.ExitCode, end.Raw)
	}
}
