package box

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

type keeperHand struct {
	mu    sync.Mutex
	calls []string
	alive func() bool // is there a process?

	restore error
	save    func(ctx context.Context) error // nil for one that succeeds at once
}

func (k *keeperHand) note(call string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = append(k.calls, call)
}

func (k *keeperHand) said() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.calls)
}

func (k *keeperHand) Restore(_ context.Context, process, owner, _ string) ([]string, error) {
	k.note("restore " + process + " of " + owner)
	return nil, k.restore
}

func (k *keeperHand) Save(ctx context.Context, process, owner, _, _ string) error {
	if k.alive != nil && k.alive() {
		k.note("save, but it runs " + process)
	}
	k.note("save " + process + " of " + owner)
	if k.save != nil {
		return k.save(ctx)
	}
	return nil
}

func (k *keeperHand) Leave(process string) { k.note("leave " + process) }

func (k *keeperHand) Forget(_ context.Context, process string) error {
	k.note("forget " + process)
	return nil
}

// withKeeper is a box whose processes have a workspace that is kept.
func withKeeper(t *testing.T, how string, k Keeper, change ...func(*Server)) (r *rig, removed chan string) {
	t.Helper()
	place := t.TempDir()
	staged, removed := with(func(context.Context, string, func(provision.Progress)) (provision.Launch, error) {
		l := asConfigured(t)
		l.Workspace = place
		return l, nil
	})
	return newRig(t, how, append([]func(*Server){staged, func(s *Server) { s.Keeper = k }}, change...)...), removed
}

// calls waits until the Keeper was called as in want. The test fails if the Keeper got
// other calls.
func calls(t *testing.T, k *keeperHand, want ...string) {
	t.Helper()
	commontest.Eventually(t, strings.Join(want, ", "), func() bool { return len(k.said()) >= len(want) })
	commontest.SameIn(t, "the keeper was called", want, k.said())
}

func TestWorkspaceIsRestoredBeforeAndSavedAfterAProcess(t *testing.T) {
	full := []error{&os.PathError{Op: "write", Err: syscall.ENOSPC}}
	k := &keeperHand{save: func(context.Context) (err error) {
		if len(full) > 0 {
			err, full = full[0], nil
		}
		return err
	}}
	r, _ := withKeeper(t, "plain", k, func(s *Server) { s.Idle = 20 * time.Millisecond })
	k.alive = func() bool {
		return slices.ContainsFunc(r.Processes(), func(p ProcessStatus) bool { return commontest.Alive(p.PID) })
	}
	r.result(r.call("1", "echo", "{}"))
	r.state(t, Stopped)
	r.result(r.call("2", "echo", "{}"))
	r.state(t, Stopped)
	calls(t, k, "restore s of s", "save s of s", "save s of s", "restore s of s", "save s of s")
}

func TestBoxIsNotIdleBeforeWorkspacesAreSaved(t *testing.T) {
	saving, goOn := make(chan struct{}), make(chan struct{})
	k := &keeperHand{save: func(context.Context) error {
		close(saving)
		<-goOn
		return nil
	}}
	r, _ := withKeeper(t, "plain", k, func(s *Server) { s.Idle = 20 * time.Millisecond })
	r.result(r.call("1", "echo", "{}"))
	commontest.EqualIn(t, "idle while its process runs", false, r.idle())
	<-saving
	commontest.EqualIn(t, "idle while its workspace is saved", false, r.idle())
	// The next process waits until the workspace is saved.
	next := r.call("2", "echo", "{}")
	commontest.EqualIn(t, "the keeper was called", 2, len(k.said()))
	k.save = nil
	close(goOn)
	r.result(next)
	commontest.Eventually(t, "the box is idle", r.idle)
}

func TestProcessThatWasBrokenOffIsNotSaved(t *testing.T) {
	t.Parallel()
	for tool, want := range map[string][]string{
		"die":          {"restore s of s", "restore s of s", "save s of s"}, // what the next process saves, which works in the same workspace
		"hang":         {"restore s of s"},                                  // it is killed at work
		"stop reading": {"restore s of s", "save s of s"},                   // it is killed, and was idle
	} {
		t.Run(tool, func(t *testing.T) {
			k := &keeperHand{}
			r, _ := withKeeper(t, "deaf to sigterm", k)
			r.hurry()
			call := r.call("1", tool, "{}")
			switch tool {
			case "stop reading":
				r.result(call)
			case "hang":
				r.result(r.call("2", "echo", "{}")) // so it has read the call before
			default:
				r.failure(call)
				r.result(r.call("2", "echo", "{}"))
			}
			commontest.OK(t, r.Close(t.Context(), 0))
			calls(t, k, want...)
		})
	}
}

func TestWorkspaceThatCannotBeRestoredStartsNothing(t *testing.T) {
	k := &keeperHand{restore: &provision.Error{Phase: provision.SessionCreate, Err: errors.New("restore the workspace: key hunter22 is wrong")}}
	r, _ := withKeeper(t, "plain", k, func(s *Server) { s.Env["API_KEY"] = "hunter22" })
	f := r.failure(r.call("1", "echo", "{}"))
	commontest.EqualIn(t, "phase", PhaseSessionCreate, f.Phase)
	commontest.EqualIn(t, "message", `server "fake": cannot be started: restore the workspace: key *** is wrong`, f.Message)
	calls(t, k, "restore s of s")
}

func TestEndedSessionIsForgottenAndNotSaved(t *testing.T) {
	k := &keeperHand{}
	r, removed := withKeeper(t, "plain", k)
	r.result(r.call("1", "echo", "{}"))
	r.StopSession("s")
	<-removed
	calls(t, k, "restore s of s", "forget s")
	r.StopSession("of an earlier life")
	<-removed
	calls(t, k, "restore s of s", "forget s", "forget of an earlier life")
}

func TestCloseWaitsForWhatIsSavedAsLongAsItHasTime(t *testing.T) {
	begun := make(chan struct{})
	given := make(chan error, 1)
	k := &keeperHand{save: func(ctx context.Context) error {
		close(begun)
		<-ctx.Done()
		given <- ctx.Err()
		return ctx.Err()
	}}
	r, _ := withKeeper(t, "plain", k)
	r.result(r.call("1", "echo", "{}"))
	ctx, cancel := context.WithCancel(t.Context())
	closed := make(chan error, 1)
	go func() { closed <- r.Close(ctx, 0) }()
	<-begun
	commontest.EqualIn(t, "it is closed before it was saved", 0, len(closed))
	cancel()
	for _, err := range []error{<-closed, <-given} {
		commontest.EqualIn(t, "ended by its context", true, errors.Is(err, context.Canceled))
	}
}

func TestProcessIsToldWhereItsWorkspaceIs(t *testing.T) {
	r, _ := withKeeper(t, "plain", &keeperHand{}, func(s *Server) { s.Env["MEMORY"] = WorkspaceVariable + "/memory.json" })
	if value := r.variable(r.call("1", "env", "{}"), "MEMORY"); !filepath.IsAbs(value) || filepath.Base(value) != "memory.json" {
		t.Error(value)
	}
	s := Server{Args: []string{"a", "${workspaceFolder}/b:${workspaceFolder}"}}
	if got := s.staged(provision.Launch{Args: s.Args, Workspace: "/w"}).Args[1]; got != "/w/b:/w" || s.Args[1] == got {
		t.Errorf("argument %s, and the one that was configured is %s", got, s.Args[1])
	}
}

func TestSessionsOfAPrincipalBeginWithWhatTheLastOneLeft(t *testing.T) {
	k := &keeperHand{}
	r, removed := withKeeper(t, "plain", k, func(s *Server) { s.Idle, s.Kept = 20*time.Millisecond, ScopePrincipal })
	r.result(r.callAs("ann/1", "1", "echo", "0"))
	calls(t, k, "restore ann/1 of principal-ann", "save ann/1 of principal-ann", "leave ann/1")
	commontest.EqualIn(t, "the workspace", "ann/1", <-removed)
	// The end of a session takes nothing from the other sessions of its principal.
	r.StopSession("ann/1")
	commontest.EqualIn(t, "the workspace", "ann/1", <-removed)
	calls(t, k, "restore ann/1 of principal-ann", "save ann/1 of principal-ann", "leave ann/1", "leave ann/1")
}

func TestWhatASharedProcessHasKeptOutlivesEverySession(t *testing.T) {
	k := &keeperHand{}
	r, _ := withKeeper(t, "plain", k, func(s *Server) { s.Idle, s.Scope = 20*time.Millisecond, ScopePrincipal })
	r.result(r.callAs("ann/1", "1", "echo", "0"))
	r.StopSession("ann/1")
	r.state(t, Stopped)
	calls(t, k, "restore principal-ann of principal-ann", "save principal-ann of principal-ann")
}
