package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// The pauses after failed starts become longer. Clients get the failure itself
// at once.
func TestStartsThatFailAreFollowedByPauses(t *testing.T) {
	change, _ := with(func(context.Context, string, func(provision.Progress)) (provision.Launch, error) {
		return provision.Launch{}, &provision.Error{Phase: provision.DepInstall, Err: errors.New("no network")}
	})
	var s Server
	change(&s)
	inBubbleFrom(t, s, func(t *testing.T, d dialogue) {
		for i, want := range []time.Duration{0, 0, 2 * time.Second, 4 * time.Second, 8 * time.Second, 8 * time.Second} {
			begun := time.Now()
			// Each failure is in another session: the limit is for the server as a whole.
			d.fails(d.deliverIn("s"+strconv.Itoa(i), "x"), PhaseDepInstall, "")
			commontest.EqualIn(t, "attempt", want, time.Since(begun))
		}
		commontest.Contains(t, "whoever waits is told", "waiting 2s", d.state(t, Staging).Detail)
	})
}

func TestProcessThatWaitsForItsStartCanBeStopped(t *testing.T) {
	change, removed := with(func(context.Context, string, func(provision.Progress)) (provision.Launch, error) {
		t.Error("it was staged")
		return provision.Launch{}, context.Canceled
	})
	var s Server
	change(&s)
	inBubbleFrom(t, s, func(t *testing.T, d dialogue) {
		d.starts = backOff{failed: 3, next: time.Now().Add(4 * time.Second)}
		call := d.deliverIn("s", "x")
		synctest.Wait()
		commontest.EqualIn(t, "a box with a start that waits is idle", false, d.idle())
		d.StopSession("s")
		d.fails(call, PhaseBoxUnavailable, "")
		<-removed
	})
}

func TestManyCallersAtOnceStartOneProcess(t *testing.T) {
	var starts atomic.Int64
	change, _ := with(func(context.Context, string, func(provision.Progress)) (provision.Launch, error) {
		starts.Add(1)
		return asConfigured(t), nil
	})
	r := newRig(t, "normal", change)
	for range 50 {
		go r.Deliver(frame.Deliver{ID: storage.NewStreamID(), Session: "s", Raw: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%q,"method":"test/pid"}`, storage.NewStreamID())})
	}
	pids := map[string]bool{}
	for range 50 {
		e := find(t, r.recorder, "an answer", func(e frame.Event) bool { return e.Final })
		pids[string(wire.Lookup(e.Raw, "result"))] = true
	}
	commontest.Equal(t, 1, starts.Load())
	commontest.Equal(t, 1, len(pids))
}

func TestClientThatWaitsIsToldHowFarTheStartIs(t *testing.T) {
	change, _ := with(func(_ context.Context, _ string, tell func(provision.Progress)) (provision.Launch, error) {
		tell(provision.Progress{Phase: provision.SessionCreate, Text: "copying the workspace"})
		tell(provision.Progress{Phase: provision.DepInstall, Text: "installing with hunter22"})
		return asConfigured(t), nil
	})
	r := newRig(t, "normal", change, func(s *Server) { s.Env["API_KEY"] = "hunter22" })
	silent, stream := r.deliverIn("gave no token", "pid"), r.callAs("s", "1", "pid", "0")
	last := -2.0
	for _, want := range []string{"copying the workspace", "installing with ***"} {
		m, err := wire.Parse(r.event(t, stream).Raw)
		commontest.OK(t, err)
		var p struct {
			Message, ProgressToken string
			Progress               float64
		}
		commontest.OK(t, json.Unmarshal(m.Params, &p))
		if m.Method != wire.NotifyProgress || p.Message != want || p.ProgressToken != "t" || p.Progress <= last || p.Progress >= 0 {
			t.Errorf("progress %s, want %q, more than %g and less than the server's own", m.Raw, want, last)
		}
		last = p.Progress
	}
	r.result(stream)
	r.result(silent)
	r.none(t, silent)
}

func TestOneMoreProcessTakesTheRoomOfTheIdlest(t *testing.T) {
	r := newRig(t, "normal", func(s *Server) { s.MaxProcesses = 2 })
	first := string(r.result(r.deliverIn("a", "pid")))
	r.result(r.deliverIn("b", "pid"))
	r.result(r.deliverIn("a", "pid")) // so that b is the idlest
	r.result(r.deliverIn("c", "pid"))
	commontest.EqualIn(t, "the process", "b", r.state(t, Stopped).Session)
	for _, session := range []string{"a", "b", "c"} {
		commontest.EqualIn(t, "the process that started", session, r.state(t, Started).Session)
	}
	for _, session := range []string{"b", "c"} {
		full := find(t, r.recorder, "the report that the box is full", func(s frame.Status) bool { return s.Phase == frame.PhaseFull })
		commontest.EqualIn(t, "the box is full with", session, string(full.Session))
	}
	commontest.EqualIn(t, "the process of a", first, string(r.result(r.deliverIn("a", "pid"))))
}

// A machine whose memory is full starts no process. That is no failure of the server, so its next
// start does not wait.
func TestAFullMachineRefusesANewProcess(t *testing.T) {
	var free atomic.Int64
	r := newRig(t, "normal", func(s *Server) {
		s.Memory = guard.NewMemory(func() (int64, int64, bool) { return free.Load(), 1 << 30, true })
	})
	for range 3 {
		f := r.failure(r.deliverIn("a", "pid"))
		if st := r.state(t, Exited); f.Code != wire.CodeInternal || f.Phase != PhaseSessionCreate || f.RetryAfter != 10 || !f.NotExecuted || st.Detail != f.Message {
			t.Errorf("%q %+v; the operator gets %q", f.Message, f, st.Detail)
		}
	}
	free.Store(1 << 30)
	r.result(r.deliverIn("a", "pid"))
	_, stop, ok := r.Idlest()
	commontest.EqualIn(t, "its process is idle", true, ok)
	r.result(r.deliverIn("a", "pid"))
	commontest.EqualIn(t, "a process that was used meanwhile is stopped", true, stop() == nil)
	_, stop, _ = r.Idlest()
	commontest.EqualIn(t, "an idle process is stopped", true, stop() != nil)
	r.state(t, Stopped)
}

// L-32: a process that is being stopped counts against MaxProcesses until it has ended.
func TestOneMoreProcessIsRefusedWhenAllAreAtWork(t *testing.T) {
	r := newRig(t, "normal", func(s *Server) { s.MaxProcesses = 2 })
	r.deliverIn("a", "hang")
	hang := r.deliverIn("b", "hang")
	r.result(r.deliverIn("a", "pid"))
	f := r.failure(r.deliverIn("c", "pid"))
	if f.Phase != PhaseBoxUnavailable || f.Limit != 2 || f.RetryAfter != 10 {
		t.Errorf("%q %+v", f.Message, f)
	}
	r.StopSession("b")
	waits := r.deliverIn("c", "pid") // this one waits for the place of the process that ends
	r.failure(hang)
	r.result(waits)
	if n := len(r.Processes()); n > 2 {
		t.Errorf("%d processes run", n)
	}
}

func TestRoomOfAProcessIsGivenOnce(t *testing.T) {
	r := newRig(t, "normal", func(s *Server) { s.MaxProcesses = 1 })
	r.result(r.deliverIn("a", "pid"))
	b, c := r.deliverIn("b", "pid"), r.deliverIn("c", "pid")
	r.result(b)
	if f := r.failure(c); f.Phase != PhaseBoxUnavailable || f.RetryAfter == 0 {
		t.Errorf("two got the room of one: %+v", f)
	}
}

func TestProcessThatRanOutOfMemoryIsToldApart(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		exit   proc.Exit
		killed bool
		stderr string
		want   bool
	}{
		"go":           {code(2), false, "fatal error: runtime: out of memory\n", true},
		"python":       {code(1), false, "Traceback:\nMemoryError\n", true},
		"the kernel":   {proc.Exit{Signal: "SIGKILL"}, true, "", true},
		"somebody":     {proc.Exit{Signal: "SIGKILL"}, false, "", false},
		"a clean exit": {code(0), true, "was out of memory once", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := &output{}
			_, _ = p.stderr.Write([]byte(test.stderr))
			commontest.EqualIn(t, name, test.want, p.starved(test.exit, test.killed, written{}))
		})
	}
}

func code(n int) proc.Exit { return proc.Exit{Code: &n} }

// L-35: a start that takes long holds up no other start.
func TestSessionsStartBesideOneAnother(t *testing.T) {
	gate := make(chan struct{})
	change, _ := with(func(_ context.Context, process string, _ func(provision.Progress)) (provision.Launch, error) {
		if process == "slow" {
			<-gate
		}
		return asConfigured(t), nil
	})
	r := newRig(t, "normal", change)
	slow := r.deliverIn("slow", "pid")
	r.result(r.deliverIn("quick", "pid"))
	close(gate)
	r.result(slow)
}

type stageHand struct {
	stage   func(ctx context.Context, process string, tell func(provision.Progress)) (provision.Launch, error)
	removed chan string
}

func (s stageHand) Provision(ctx context.Context, process string, tell func(provision.Progress), restore provision.Restore) (provision.Launch, error) {
	if restore != nil {
		if _, err := restore(ctx, ""); err != nil {
			return provision.Launch{}, err
		}
	}
	return s.stage(ctx, process, tell)
}

func (s stageHand) Remove(process string) error {
	s.removed <- process
	return nil
}

// with returns a change that gives a server a Provisioner. removed gets the names of the
// processes whose files the box removes.
func with(do func(ctx context.Context, process string, tell func(provision.Progress)) (provision.Launch, error)) (change func(*Server), removed chan string) {
	removed = make(chan string, 10)
	return func(s *Server) { s.Provisioner = stageHand{do, removed} }, removed
}

// asConfigured launches the fake server itself.
func asConfigured(t *testing.T) provision.Launch { return provision.Launch{Command: self(t)} }

func TestProcessRunsWhatTheStagerSays(t *testing.T) {
	dir := t.TempDir()
	change, _ := with(func(_ context.Context, process string, tell func(provision.Progress)) (provision.Launch, error) {
		commontest.Equal(t, "s", process)
		tell(provision.Progress{Phase: provision.DepInstall, Text: "installing hunter22"})
		l := asConfigured(t)
		l.Cwd, l.Path, l.Env = dir, []string{"/venv/bin", "/other/bin"}, map[string]string{"VIRTUAL_ENV": "/venv"}
		return l, nil
	})
	r := newRig(t, "plain", change, func(s *Server) {
		s.Command, s.Env["PATH"], s.Env["API_KEY"] = "/not/there", "/usr/bin", "hunter22"
	})
	commontest.Contains(t, "", filepath.Base(dir), string(r.result(r.call("1", "cwd", "{}"))))
	env := string(r.result(r.call("2", "env", "{}")))
	commontest.Contains(t, "", `"PATH=/venv/bin:/other/bin:/usr/bin"`, env)
	commontest.Contains(t, "", `"VIRTUAL_ENV=/venv"`, env)
	commontest.EqualIn(t, "told", "installing ***", r.state(t, Staging).Detail)
}

func TestFailureOfTheStagerIsTold(t *testing.T) {
	exit := 17
	change, _ := with(func(context.Context, string, func(provision.Progress)) (provision.Launch, error) {
		return provision.Launch{}, &provision.Error{
			Phase: provision.DepInstall, ExitCode: &exit, Stderr: "er22 bad, key hunter22",
			Err: errors.New("dependency install failed (exit 17): er22 bad, key hunter22"),
		}
	})
	r := newRig(t, "plain", change, func(s *Server) { s.Env["API_KEY"] = "hunter22" })
	want := `server "fake": cannot be started: dependency install failed (exit 17): *** bad, key ***`
	f := r.fails(r.call("1", "echo", "{}"), PhaseDepInstall, want)
	if f.Stderr != "*** bad, key ***" || *f.ExitCode != 17 {
		t.Errorf("%+v", f)
	}
	commontest.Equal(t, PhaseDepInstall, r.state(t, Exited).Phase)
}

func waiting(began chan<- struct{}) func(context.Context, string, func(provision.Progress)) (provision.Launch, error) {
	return func(ctx context.Context, _ string, _ func(provision.Progress)) (provision.Launch, error) {
		began <- struct{}{}
		<-ctx.Done()
		return provision.Launch{}, &provision.Error{Phase: provision.DepInstall, Err: context.Cause(ctx)}
	}
}

func TestStagingEndsWithTheStartupTimeout(t *testing.T) {
	change, _ := with(waiting(make(chan struct{}, 9)))
	r := newRig(t, "plain", change, func(s *Server) { s.StartupTimeout = 20 * time.Millisecond })
	f := r.failure(r.call("1", "echo", "{}"))
	if f.Phase != PhaseDepInstall || f.Setting != "startup_timeout_sec" || f.Limit != 0.02 || !strings.Contains(f.Message, "within startup_timeout_sec") {
		t.Errorf("%s: %+v", f.Message, f)
	}
}

// L-30: a session that ends while its process is staged leaves neither a process nor
// files.
func TestSessionThatEndsWhileItIsStagedStartsNothing(t *testing.T) {
	began := make(chan struct{}, 1)
	change, removed := with(waiting(began))
	r := newRig(t, "plain", change)
	call := r.call("1", "echo", "{}")
	<-began
	r.StopSession("s")
	commontest.Equal(t, "s", <-removed)
	r.fails(call, PhaseBoxUnavailable, "")
	call = r.call("2", "echo", "{}")
	<-began
	commontest.OK(t, r.Close(t.Context(), 0))
	r.fails(call, PhaseBoxUnavailable, "")
	commontest.Equal(t, 0, len(r.Processes()))
}

func TestWorkspaceGoesWithItsSessionAndNotWithItsProcess(t *testing.T) {
	change, removed := with(func(context.Context, string, func(provision.Progress)) (provision.Launch, error) {
		return asConfigured(t), nil
	})
	r := newRig(t, "plain", change, func(s *Server) { s.Idle = 20 * time.Millisecond })
	r.result(r.call("1", "echo", "{}"))
	r.state(t, Stopped)
	commontest.EqualIn(t, "removed when the process fell asleep", 0, len(removed))
	r.StopSession("s") // the box no longer holds the session in memory
	commontest.Equal(t, "s", <-removed)
	r.result(r.call("2", "echo", "{}"))
	r.StopSession("s")
	commontest.Equal(t, "s", <-removed)
	alive := slices.ContainsFunc(r.Processes(), func(p ProcessStatus) bool { return p.State == Ready })
	commontest.EqualIn(t, "removed while the process ran", false, alive)
}
