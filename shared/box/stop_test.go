package box

import (
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// The end of a process does not count as activity. Otherwise the box would sleep only after twice
// the idle time.
func TestIdleProcessIsStoppedAndTheNextMessageStartsAnother(t *testing.T) {
	r := newRig(t, "normal", func(s *Server) { s.Idle = 100 * time.Millisecond })
	first := r.result(r.call("1", "pid", "0"))
	s := r.state(t, Stopped)
	if strconv.Itoa(s.PID) != string(first) || s.Phase != "" || s.ExitCode == nil || *s.ExitCode != 0 {
		t.Errorf("the end is told as %+v", s)
	}
	commontest.Eventually(t, "the session is forgotten", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.sessions) == 0
	})
	if since, idle := r.IdleSince(); !idle || time.Since(since) < 100*time.Millisecond {
		t.Errorf("the end of the process counts as something a client did: %v since %s", idle, since)
	}
	r.another(first, r.result(r.call("1", "pid", "0")))
}

func TestAClientIsToldThatTheMemoryOfItsServerIsGone(t *testing.T) {
	for name, test := range map[string]struct {
		level       string
		again, told bool
	}{
		"a level": {"info", true, true}, "a higher level": {"warning", true, false}, "none": {"", true, false}, "a new session": {"info", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleFrom(t, Server{}, func(t *testing.T, d dialogue) {
				call := d.as("s", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pid"}}`, func(of *frame.Deliver) { of.Again, of.Level = test.again, test.level })
				d.greets(`{}`)
				d.answersCall()
				logger, _ := wire.String(wire.Lookup(d.event(t, call).Raw, "params", "logger"))
				commontest.EqualIn(t, "first it hears", test.told, logger == "dormouse")
			})
		})
	}
}

func TestAProcessIsKeptAwakeByItsClientAndNotByItself(t *testing.T) {
	inBubble(t, Server{Idle: time.Minute}, func(t *testing.T, d dialogue) {
		time.Sleep(59 * time.Second)
		d.deliver(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
		for range 2 {
			time.Sleep(29 * time.Second)
			d.hears(`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
		}
		commontest.EqualIn(t, "its time to be idle has not begun anew", false, d.asleep())
		time.Sleep(3 * time.Second)
		commontest.EqualIn(t, "it is asleep", true, d.asleep())
	})
}

func TestBoxIsNotIdleWhileTheSinkIsToldSomething(t *testing.T) {
	r := newRig(t, "normal")
	r.block = make(chan struct{})
	r.deliver(`no message`)
	commontest.EqualIn(t, "the box is idle", false, r.idle())
	close(r.block)
	commontest.Eventually(t, "the box is idle", r.idle)
}

// Its call ends when the server's grace time is over, not only when the server is dead. The next
// process of the session waits for its end.
func TestServerThatIgnoresSIGTERMIsKilled(t *testing.T) {
	r := newRig(t, "deaf to sigterm")
	r.hurry()
	hang := r.call("1", "hang", "0")
	pid := r.state(t, Ready).PID
	begin := time.Now()
	r.StopSession("s")
	commontest.EqualIn(t, "signal", "", r.fails(hang, PhaseBoxUnavailable, `server "fake": the session was ended; whether the call was executed is not known`).Signal)
	s := r.state(t, Stopped)
	if s.PID != pid || s.Signal != "SIGKILL" || commontest.Alive(pid) || time.Since(begin) < r.grace.Stdin+r.grace.Term {
		t.Errorf("after %s the end is told as %+v", time.Since(begin), s)
	}
}

func TestIdIsTakenUntilTheOldProcessHasEndedItsRequest(t *testing.T) {
	r := newRig(t, "deaf to sigterm")
	hang := r.call("1", "hang", "0")
	r.state(t, Ready)
	r.StopSession("s")
	commontest.EqualIn(t, "code", wire.CodeInvalidRequest, r.fails(r.call("1", "echo", "0"), "", "duplicate request id").Code)
	r.none(t, hang)
}

func TestNewProcessWaitsForTheOldOneOfItsSession(t *testing.T) {
	r := newRig(t, "deaf to sigterm")
	r.hurry()
	r.result(r.call("1", "echo", "0"))
	old := r.state(t, Ready).PID
	r.StopSession("s")
	r.result(r.call("1", "echo", "0"))
	commontest.EqualIn(t, "two processes of one session ran at once", false, commontest.Alive(old))
}

func TestChildrenLeftInTheGroupAreKilled(t *testing.T) {
	r := newRig(t, "normal")
	for _, end := range []func(){func() { r.StopSession("s") }, func() { r.call("9", "die", "0") }} {
		child, err := strconv.Atoi(string(r.result(r.call("1", "fork", "0"))))
		if err != nil || !commontest.Alive(child) {
			t.Fatalf("the child %d is not there (%v)", child, err)
		}
		end()
		commontest.Eventually(t, "the child is gone", func() bool { return !commontest.Alive(child) })
	}
}

func TestChildThatLeftTheGroupHoldsUpNothing(t *testing.T) {
	r := newRig(t, "normal")
	hang := r.call("1", "hang", "0")
	away, err := strconv.Atoi(string(r.result(r.call("2", "leave group", "0"))))
	commontest.OK(t, err)
	defer func() { _ = syscall.Kill(away, syscall.SIGKILL) }()
	if f := r.failure(hang); *f.ExitCode != 0 || f.Message != `server "fake": exited with code 0` {
		t.Errorf("got %q %+v", f.Message, f)
	}
}

func TestCloseStopsEverythingAndEndsWhatIsOpen(t *testing.T) {
	r := newRig(t, "normal")
	var pids []int
	var open []string
	for _, s := range []string{"a", "b"} {
		open = append(open, r.deliverIn(s, "hang"))
		pids = append(pids, r.state(t, Ready).PID)
	}
	commontest.OK(t, r.Close(t.Context(), 0))
	for i, call := range open {
		f := r.fails(call, PhaseBoxUnavailable, `server "fake": the box was shut down; whether the call was executed is not known`)
		commontest.EqualIn(t, "code", wire.CodeOutcomeUnknown, f.Code)
		commontest.EqualIn(t, "the process is there", false, commontest.Alive(pids[i]))
	}
	r.fails(r.call("1", "echo", "0"), PhaseBoxUnavailable, "")
	commontest.EqualIn(t, "a process was started after Close", 0, len(r.Processes()))
}

func TestACallThatNeverReachedItsProcessEndsWithIt(t *testing.T) {
	r := newRig(t, "silent")
	r.hurry()
	waits := r.call("1", "echo", "0")
	r.state(t, Started)
	r.Halt(frame.Halt{Session: "s", By: "ada"})
	want := `server "fake": it was stopped by ada; the call was not executed, send it again`
	commontest.EqualIn(t, "code", wire.CodeInternal, r.fails(waits, "", want).Code)
	r.state(t, Stopped)
}

func TestNoGoroutineIsLeftBehind(t *testing.T) {
	beside.Store(t, false) // it counts the goroutines of this program
	before := runtime.NumGoroutine()
	for _, how := range []string{"normal", "exits", "refuses", "deaf to sigterm"} {
		r := newRig(t, how)
		r.hurry()
		for _, call := range []string{r.deliverIn("a", "pid"), r.deliverIn("b", "pid"), r.deliverIn("c", "pid")} {
			r.final(t, call)
		}
		commontest.OK(t, r.Close(t.Context(), 0))
	}
	commontest.Eventually(t, "the goroutines are gone", func() bool { return runtime.NumGoroutine() <= before })
}

const stoppedByAda = `server "fake": it was stopped by ada; whether the call was executed is not known`

// Without a client that could answer, a call that asks gets no time.
func TestHaltNowEndsAHangingCallAndTheNextOneWorks(t *testing.T) {
	r := newRig(t, "normal")
	first := r.result(r.call("1", "pid", "0"))
	other := r.callAs("t", "1", "hang", "0")
	for i, h := range []frame.Halt{{By: "ada", In: time.Hour.Milliseconds(), Alone: true}, {By: "ada", Session: "s"}, {By: "ada"}} {
		hang := r.call("2", "ask", `"e"`)
		r.event(t, hang)
		r.Halt(h)
		commontest.EqualIn(t, "another call that asks nothing is in flight", i < 2, r.isOpen("t", other))
		if f := r.failure(hang); f.ID != "2" || f.Message != stoppedByAda || f.Code != wire.CodeOutcomeUnknown || f.Phase != PhaseBoxUnavailable {
			t.Errorf("the call %s ended with %q, code %d, %+v", f.ID, f.Message, f.Code, f)
		}
		next := r.result(r.call("3", "pid", "0"))
		r.another(first, next)
		first = next
		r.state(t, Stopped)
	}
}

// A call that asks its client something is in flight until the test lets it end.
func TestHaltLetsCallsInFlightEnd(t *testing.T) {
	r := newRig(t, "normal")
	first := r.result(r.call("1", "pid", "0"))
	d := r.call("2", "ask", `"e"`)
	q, _ := wire.String(wire.Lookup(r.event(t, d).Raw, "id"))
	r.Halt(frame.Halt{Session: "nobody", By: "ada"}) // is not here
	r.Halt(frame.Halt{Session: "s", By: "ada", In: patience.Milliseconds()})
	next := r.call("3", "pid", "0")
	r.Answer("s", q, []byte(`{"jsonrpc":"2.0","id":"`+q+`","result":{}}`))
	r.result(d)
	r.state(t, Stopped)
	r.another(first, r.result(next))
}

// An order that comes late, as that of a machine that drains after it was told to end at once,
// gives no more time.
func TestTheHaltThatGivesLessTimeCounts(t *testing.T) {
	r := newRig(t, "normal")
	hang := r.call("1", "hang", "0")
	r.state(t, Ready)
	r.Halt(frame.Halt{Session: "s", By: "ada", In: time.Hour.Milliseconds()})
	r.Halt(frame.Halt{By: "bob", In: 50})
	r.Halt(frame.Halt{Session: "s", By: "cid", In: time.Hour.Milliseconds()})
	r.fails(hang, "", "stopped by bob")
}

// A process that is drained before the box knows its protocol may be asked in the wrong one.
// The next process executes its calls.
func TestHaltOfAProcessThatRefusesItsProtocolLosesNoCall(t *testing.T) {
	r := newRig(t, "hangs when probed", func(s *Server) { s.ProbeTime = time.Second })
	r.hurry()
	d := r.ask("s", "d1", wire.MethodToolsCall, `"name":"echo",`)
	r.state(t, Started)
	r.Halt(frame.Halt{Session: "s", By: "ada", In: patience.Milliseconds()})
	r.result(d)
}

func TestHaltOfASessionThatSharesItsProcessEndsItsCallsOnly(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	before := c.result(c.callAs("ann/1", "1", "pid", "0"))
	hang := c.callAs("ann/1", "2", "hang", "0")
	others := c.callAs("bob/1", "1", "answer at eof", "0")
	c.Halt(frame.Halt{Session: "ann/1", By: "ada"})
	commontest.EqualIn(t, "message", stoppedByAda, c.failure(hang).Message)
	c.none(t, others)
	commontest.EqualIn(t, "the shared process was stopped", string(before), string(c.result(c.callAs("ann/1", "3", "pid", "0"))))
}
