package box

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

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
	if st := r.state(t, Staging); st.Detail != "installing ***" || st.PID != 0 {
		t.Errorf("%+v", st)
	}
	r.state(t, Started)
}

func TestFailureOfTheStagerIsTold(t *testing.T) {
	code := 17
	for _, c := range []struct {
		err         error
		phase       Phase
		message     string
		stderr      string
		hasExitCode bool
	}{
		{
			&provision.Error{
				Phase: provision.DepInstall, ExitCode: &code, Stderr: "er22 bad, key hunter22",
				Err: errors.New("dependency install failed (exit 17): er22 bad, key hunter22"),
			},
			PhaseDepInstall, `server "fake": cannot be started: dependency install failed (exit 17): *** bad, key ***`, "*** bad, key ***", true,
		},
		{&provision.Error{Phase: provision.SessionCreate, Err: errors.New("host_path: hunter22")}, PhaseSessionCreate, `server "fake": cannot be started: host_path: ***`, "", false},
		{errors.New("odd"), PhaseProcessStart, `server "fake": cannot be started: odd`, "", false},
	} {
		change, _ := with(func(context.Context, string, func(provision.Progress)) (provision.Launch, error) {
			return provision.Launch{}, c.err
		})
		r := newRig(t, "plain", change, func(s *Server) { s.Env["API_KEY"] = "hunter22" })
		f := r.failure(r.call("1", "echo", "{}"))
		if f.Phase != c.phase || f.Message != c.message || f.Stderr != c.stderr || (f.ExitCode != nil) != c.hasExitCode {
			t.Errorf("%s: %+v", f.Message, f)
		}
		commontest.Equal(t, c.phase, r.state(t, Exited).Phase)
	}
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
	for name, end := range map[string]func(r *rig, removed <-chan string){
		"the session": func(r *rig, removed <-chan string) {
			r.StopSession("s")
			commontest.Equal(t, "s", <-removed)
		},
		"the box": func(r *rig, _ <-chan string) { commontest.OK(t, r.Close(t.Context(), 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			began := make(chan struct{}, 1)
			change, removed := with(waiting(began))
			r := newRig(t, "plain", change)
			call := r.call("1", "echo", "{}")
			<-began
			end(r, removed)
			commontest.EqualIn(t, "phase", PhaseBoxUnavailable, r.failure(call).Phase)
			commontest.Equal(t, 0, len(r.Processes()))
		})
	}
}

func TestWorkspaceGoesWithItsSessionAndNotWithItsProcess(t *testing.T) {
	change, removed := with(func(context.Context, string, func(provision.Progress)) (provision.Launch, error) {
		return asConfigured(t), nil
	})
	r := newRig(t, "plain", change, func(s *Server) { s.Idle = 20 * time.Millisecond })
	r.result(r.call("1", "echo", "{}"))
	r.state(t, Stopped)
	select {
	case <-removed:
		t.Error("removed when the process fell asleep")
	default:
	}
	r.StopSession("s") // the box no longer holds the session in memory
	commontest.Equal(t, "s", <-removed)
	r.result(r.call("2", "echo", "{}"))
	r.StopSession("s")
	commontest.Equal(t, "s", <-removed)
	if alive := slices.ContainsFunc(r.Processes(), func(p ProcessStatus) bool { return p.State == Ready }); alive {
		t.Error("removed while the process ran")
	}
}

func TestServerThatDoesNotStartNamesInstallScriptsThatWereNotRun(t *testing.T) {
	change, _ := with(func(context.Context, string, func(provision.Progress)) (provision.Launch, error) {
		l := asConfigured(t)
		l.Unrun = []string{"a", "@s/b", "c", "d", "e", "f"}
		return l, nil
	})
	r := newRig(t, "exits", change)
	f := r.failure(r.call("1", "echo", "{}"))
	want := "Install scripts were not run (of a, @s/b, c, d, e and 1 more): if the server needs their results, set x-dormouse.box.install_scripts: true to run them in a sandbox"
	if f.Phase != PhaseProcessStart || !strings.HasSuffix(f.Message, want) {
		t.Error(f.Phase, f.Message)
	}
}
