package box

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

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
	// The end of a process does not count as activity. Otherwise the box would sleep only
	// after twice the idle time.
	if since, idle := r.IdleSince(); !idle || time.Since(since) < 100*time.Millisecond {
		t.Errorf("the end of the process counts as something a client did: %v since %s", idle, since)
	}
	r.another(first, r.result(r.call("1", "pid", "0")))
}

func TestAClientIsToldThatTheMemoryOfItsServerIsGone(t *testing.T) {
	const meta = `,"_meta":{"io.modelcontextprotocol/logLevel":"info"}`
	for name, test := range map[string]struct {
		level, meta string
		again, told bool
	}{
		"a level": {level: "info", again: true, told: true}, "a level of the request": {meta: meta, again: true, told: true},
		"a higher level": {level: "warning", again: true}, "none": {again: true}, "a new session": {level: "info"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleFrom(t, Server{}, func(t *testing.T, d dialogue) {
				call := d.as("s", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pid"`+test.meta+`}}`, func(of *Delivery) { of.Again, of.Level = test.again, test.level })
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

func TestIdleSinceIsWhenAClientLastDidSomething(t *testing.T) {
	begin := time.Now()
	r := newRig(t, "normal")
	made, idle := r.IdleSince()
	if !idle || made.Before(begin) {
		t.Errorf("a new box is idle: %v since %s", idle, made)
	}
	d := r.call("1", "echo", "1")
	commontest.EqualIn(t, "the box is idle while a process starts", false, r.idle())
	r.result(d)
	var ended time.Time
	commontest.Eventually(t, "the box is idle", func() (ok bool) { ended, ok = r.IdleSince(); return ok })
	if !ended.After(made) {
		t.Errorf("idle since %s, which is not after %s", ended, made)
	}
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if again, idle := r.IdleSince(); !idle || !again.After(ended) {
		t.Errorf("idle: %v since %s after a message, before since %s", idle, again, ended)
	}
}

func TestBoxIsNotIdleWhileTheSinkIsToldSomething(t *testing.T) {
	r := newRig(t, "normal")
	r.block = make(chan struct{})
	r.deliver(`no message`)
	commontest.EqualIn(t, "the box is idle", false, r.idle())
	close(r.block)
	commontest.Eventually(t, "the box is idle", r.idle)
}

func TestIdIsTakenUntilTheOldProcessHasEndedItsRequest(t *testing.T) {
	r := newRig(t, "deaf to sigterm")
	hang := r.call("1", "hang", "0")
	r.state(t, Ready)
	r.StopSession("s")
	commontest.EqualIn(t, "code", wire.CodeInvalidRequest, r.fails(r.call("1", "echo", "0"), "", "duplicate request id").Code)
	r.none(t, hang)
}

func TestServerThatIgnoresSIGTERMIsKilled(t *testing.T) {
	r := newRig(t, "deaf to sigterm")
	r.hurry()
	hang := r.call("1", "hang", "0")
	pid := r.state(t, Ready).PID
	begin := time.Now()
	r.StopSession("s")
	// The call ends when the server's grace time is over, not only when the server is
	// dead.
	commontest.EqualIn(t, "signal", "", r.fails(hang, PhaseBoxUnavailable, `server "fake": the session was ended; whether the call was executed is not known`).Signal)
	s := r.state(t, Stopped)
	if s.PID != pid || s.Signal != "SIGKILL" || commontest.Alive(pid) {
		t.Errorf("the end is told as %+v", s)
	}
	if took := time.Since(begin); took < r.grace.Stdin+r.grace.Term {
		t.Errorf("it was killed after %s already", took)
	}
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

func TestProcessThatWaitsForItsTurnCanBeStopped(t *testing.T) {
	r := newRig(t, "deaf to sigterm")
	r.result(r.call("1", "echo", "0"))
	r.StopSession("s")
	waits := r.call("1", "echo", "0")
	r.StopSession("s")
	r.fails(waits, PhaseBoxUnavailable, "")
}

func TestChildrenLeftInTheGroupAreKilled(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*rig){
		"when it is stopped": func(r *rig) { r.StopSession("s") },
		"when it dies":       func(r *rig) { r.call("9", "die", "0") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "normal")
			child, err := strconv.Atoi(string(r.result(r.call("1", "fork", "0"))))
			if err != nil || !commontest.Alive(child) {
				t.Fatalf("the child %d is not there (%v)", child, err)
			}
			end(r)
			find(t, r.recorder, "the end", func(s ProcessStatus) bool { return s.State == Stopped || s.State == Exited })
			commontest.Eventually(t, "the child is gone", func() bool { return !commontest.Alive(child) })
		})
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
		f := r.failure(call)
		if want := `server "fake": the box was shut down; whether the call was executed is not known`; f.Phase != PhaseBoxUnavailable || f.Message != want || f.Code != wire.CodeOutcomeUnknown {
			t.Errorf("got %q, code %d, %+v", f.Message, f.Code, f)
		}
		if commontest.Alive(pids[i]) {
			t.Errorf("process %d is there", pids[i])
		}
	}
	r.fails(r.call("1", "echo", "0"), PhaseBoxUnavailable, "")
	commontest.EqualIn(t, "a process was started after Close", 0, len(r.Processes()))
	commontest.CheckIn(t, "the second Close", r.Close(t.Context(), 0))
}

func TestCloseLetsCallsInFlightEnd(t *testing.T) {
	r := newRig(t, "normal")
	d := r.call("1", "ask", `"e"`)
	q, _ := wire.String(wire.Lookup(r.event(t, d).Raw, "id"))
	closed := make(chan error, 1)
	go func() { closed <- r.Close(t.Context(), patience) }()
	n := 1
	commontest.Eventually(t, "the box refuses calls", func() bool {
		n++
		id := strconv.Itoa(n)
		return strings.Contains(string(r.final(t, r.call(id, "pid", "0")).Raw), "the box is shut down, try again")
	})
	r.Answer("s", q, []byte(`{"jsonrpc":"2.0","id":"`+q+`","result":{}}`))
	r.result(d)
	commontest.Check(t, <-closed)
}

func TestACallThatNeverReachedItsProcessEndsWithIt(t *testing.T) {
	t.Parallel()
	for why, end := range map[string]func(*rig){
		"it was stopped by ada": func(r *rig) { r.Halt("s", "ada", 0) },
		"the box was shut down": func(r *rig) { commontest.OK(r.t, r.Close(r.t.Context(), 0)) },
	} {
		t.Run(why, func(t *testing.T) {
			r := newRig(t, "silent")
			r.hurry()
			waits := r.call("1", "echo", "0")
			r.state(t, Started)
			end(r)
			want := `server "fake": ` + why + `; the call was not executed, send it again`
			commontest.EqualIn(t, "code", wire.CodeInternal, r.fails(waits, "", want).Code)
			r.state(t, Stopped)
		})
	}
}

func TestCloseKillsWhenItsTimeIsOver(t *testing.T) {
	r := newRig(t, "deaf to sigterm")
	r.result(r.call("1", "echo", "0"))
	pid := r.state(t, Ready).PID
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Close(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	commontest.Eventually(t, "the process is gone", func() bool { return !commontest.Alive(pid) })
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

func TestHaltNowEndsAHangingCallAndTheNextOneWorks(t *testing.T) {
	t.Parallel()
	for name, session := range map[string]string{"of the session": "s", "of the box": ""} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "normal")
			first := r.result(r.call("1", "pid", "0"))
			hang := r.call("2", "hang", "0")
			r.Halt(storage.ID(session), "ada", 0)
			if f := r.failure(hang); f.ID != "2" || f.Message != stoppedByAda || f.Code != wire.CodeOutcomeUnknown || f.Phase != PhaseBoxUnavailable {
				t.Errorf("the call %s ended with %q, code %d, %+v", f.ID, f.Message, f.Code, f)
			}
			r.another(first, r.result(r.call("3", "pid", "0")))
			r.state(t, Stopped)
		})
	}
}

// A call that asks its client something is in flight until the test lets it end.
func TestHaltLetsCallsInFlightEnd(t *testing.T) {
	r := newRig(t, "normal")
	first := r.result(r.call("1", "pid", "0"))
	d := r.call("2", "ask", `"e"`)
	q, _ := wire.String(wire.Lookup(r.event(t, d).Raw, "id"))
	r.Halt("nobody", "ada", 0) // is not here
	r.Halt("s", "ada", patience)
	next := r.call("3", "pid", "0")
	r.Answer("s", q, []byte(`{"jsonrpc":"2.0","id":"`+q+`","result":{}}`))
	r.result(d)
	r.state(t, Stopped)
	r.another(first, r.result(next))
}

// Calls end when their time is over. An order that comes late, as that of a machine that drains
// after it was told to end at once, gives no more time.
func TestTheHaltThatGivesLessTimeCounts(t *testing.T) {
	t.Parallel()
	for by, times := range map[string][2]time.Duration{"ada": {50 * time.Millisecond, time.Hour}, "bob": {time.Hour, 0}} {
		t.Run(by, func(t *testing.T) {
			r := newRig(t, "normal")
			hang := r.call("1", "hang", "0")
			r.state(t, Ready)
			r.Halt("s", "ada", times[0])
			r.Halt("", "bob", times[1])
			r.fails(hang, "", "stopped by "+by)
		})
	}
}

// A process that is drained before the box knows its protocol may be asked in the wrong one.
// The next process executes its calls, unless the box is shut down.
func TestHaltOfAProcessThatRefusesItsProtocolLosesNoCall(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]bool{"it is drained": false, "the box is shut down": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "hangs when probed", func(s *Server) { s.ProbeTime = time.Second })
			r.hurry()
			d := r.ask("s", "d1", wire.MethodToolsCall, `"name":"echo",`)
			r.state(t, Started)
			if r.Halt("s", "ada", patience); !ends {
				r.result(d)
				return
			}
			r.shut(patience)
			want := `server "fake": it was stopped by ada; the call was not executed, send it again`
			commontest.EqualIn(t, "code", wire.CodeInternal, r.fails(d, "", want).Code)
		})
	}
}

func TestHaltOfASessionThatSharesItsProcessEndsItsCallsOnly(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	before := c.result(c.callAs("ann/1", "1", "pid", "0"))
	hang := c.callAs("ann/1", "2", "hang", "0")
	others := c.callAs("bob/1", "1", "answer at eof", "0")
	c.Halt("ann/1", "ada", 0)
	commontest.EqualIn(t, "message", stoppedByAda, c.failure(hang).Message)
	c.none(t, others)
	commontest.EqualIn(t, "the shared process was stopped", string(before), string(c.result(c.callAs("ann/1", "3", "pid", "0"))))
}
