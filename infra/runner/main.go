// Package runner is the program of a box. It connects to the relay, runs the processes of a stdio
// server, and exits when there is nothing to do.
//
// The relay sets DORMOUSE_BOX, DORMOUSE_GENERATION, DORMOUSE_TOKEN, DORMOUSE_PASS and
// DORMOUSE_ERA. The runner also reads DORMOUSE_SERVER, DORMOUSE_RELAY_URL and, if they
// are set:
//
//	DORMOUSE_CACHE          folder of installs and workspaces; by default the first
//	                        writable one of: the user's cache folder, unless the user
//	                        is root; /var/cache/dormouse; cache beside DORMOUSE_LOGS
//	DORMOUSE_LOCKS          folder of lock files, which list the packages of installs; they
//	                        take precedence over those in the cache. By default none
//	DORMOUSE_BAKED          folder of installs in the container image; they take
//	                        precedence over all others. By default none
//	DORMOUSE_LOGS           folder for the stderr of servers and the states of their
//	                        processes; by default neither is kept
//	DORMOUSE_SHOW_OUTPUT    "on": errors quote the last stderr and stdout of servers. By
//	                        default only the operator sees them
//	DORMOUSE_BOX_TASK       the host's name for the runner, such as the ARN of its task
//	DORMOUSE_METRICS        namespace of metrics; by default there are none
//	DORMOUSE_SNAPSHOTS      where workspaces are stored while the box sleeps: "host" for
//	                        URLs from the host, or folder:PATH with an absolute path; by
//	                        default nowhere
//	DORMOUSE_SNAPSHOT_AGE   how long an unused workspace is kept in such a folder; by
//	                        default 336h
//	DORMOUSE_INSTALLS       where tests store installs of npx and uvx: folder:PATH. By
//	                        default the host stores them if it stores workspaces. For
//	                        dormouse run nobody stores them, because its cache lasts
//	DORMOUSE_IMAGE          what the image of the box starts, as JSON, if the image is the
//	                        server's own; see frame.Image
//	DORMOUSE_ROOTS          file with certificates of authorities, which the runner trusts
//	                        if its image has none
//	DORMOUSE_PROFILE        folder of the socket for profiles of the runner; see shared/operate/pprofsock
//
// In a Lambda function the runner is the function's runtime, and each invocation runs one box. The
// event of an invocation has the variables that the relay sets, and DORMOUSE_RELAY_URL. All others
// come from the host, in its first [frame.Welcome]. Of its own environment the runner reads
// DORMOUSE_CACHE. It removes AWS's variables from there before it starts a server.
//
// A server that configures no sandbox runs with the rights of the runner. A server with a profile,
// or with read_only_rootfs, can access only the system, the interpreters in its PATH, what was
// installed for it, and its workspace. A server with only limits, or with network off, can also
// access the files of its user. If the runner is root, servers with a sandbox get users of their
// own. The runner logs once which kernel features are missing. If one of them is needed to confine
// the server, the runner refuses to start it.
//
// The runner exits with 0 when its box sleeps, and with 3 if a newer runner runs the box. It exits
// with 4 if it could not reach the relay, and with 1 after any other failure.
package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/pprofsock"
)

const (
	exitFailed = 1
	exitFenced = 3
)

// heapLimit is the heap size in bytes above which Go collects garbage more often. It is twice what
// the runner needs if a server floods it, or does not read.
const heapLimit = 128 << 20

// Main runs the program, and ends the process, even on success. The caller must have called
// [sandbox.Enter] before, because the runner executes its own program again to confine servers.
func Main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	debug.SetMemoryLimit(heapLimit)
	serve := run
	if os.Getenv(runtimeAPI) != "" {
		serve = serveInvocations
		if err := hide(); err != nil {
			log.Error("the runner cannot wait for an invitation", "error", err)
			os.Exit(exitFailed)
		}
	}
	if os.Getpid() == 1 {
		code, err := supervise("/proc/self/exe", os.Args, os.Environ())
		if err != nil {
			log.Error("the runner could not start as the first process of its container", "error", err)
			code = exitFailed
		}
		os.Exit(code)
	}
	if err := serve(log); err != nil {
		log.Error("the box ended", "code", storage.CodeOf(err), "error", err)
		os.Exit(ExitCode(err))
	}
}

// ExitCode returns the exit code for an error, 0 for nil.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, runner.ErrFenced):
		return exitFenced
	case errors.Is(err, storage.Unavailable):
		return frame.ExitUnreachable
	default:
		return exitFailed
	}
}

func run(log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := pprofsock.Serve(os.Getenv(pprofsock.Environment), "runner"); err != nil {
		return err
	}
	env := ownEnvironment()
	forget("DORMOUSE_")
	if err := trust(env[frame.EnvRoots]); err != nil {
		return fmt.Errorf("%s: %w", frame.EnvRoots, err)
	}
	return host(ctx, env, ownEnvironment(), log, nil, func(*prepared) {}, nil)
}

// host runs a box until it sleeps, a newer runner runs it, or ctx ends. The argument env has the
// settings of the box, and own is the environment of this program without them. host calls onMade
// with the box. The function join connects the box to a host in this program; if join is nil, the
// box connects to the relay.
func host(ctx context.Context, env, own environment, log *slog.Logger, guarded *guard.Guard, onMade func(*prepared), join Join) error {
	c, err := assignment(env, log)
	if err != nil {
		return err
	}
	p, err := prepare(ctx, env, own, c, guarded)
	if err != nil {
		return err
	}
	defer p.remove()
	onMade(p)
	ctx, retire := context.WithCancel(ctx)
	defer retire()
	c.Idle, c.Executor, c.Digest, c.Retire = p.server.Idle, p.box, p.server.Definition(), retire
	c.Baked = p.box.provisioner.Baked()
	if p.box.memory != nil {
		c.Yield = func() { p.box.memory.Yield() }
	}
	var link frame.Link
	if join == nil {
		link = runner.New(c)
	} else if link, err = join(frame.Joining{
		Box: c.Box, Token: c.Token, Executor: c.Executor, Digest: c.Digest, Retire: retire, Idle: c.Idle, Flush: c.Flush,
		Guard: guarded, Hold: guarded.Budget().Hold,
	}); err != nil {
		return err
	}
	p.connect(link)
	err = live(ctx, link, guarded, func() *prepared { return p })
	p.tidy(context.WithoutCancel(ctx))
	return err
}

// maxProcesses limits how many processes a box runs at a time, if the memory of the machine is not
// known.
const maxProcesses = 256

// endLeftovers kills the processes that a killed runner has left. It finds them by the mark of the
// runner's folder in their environment, and by the users that own the workspaces in the folder.
func endLeftovers(folder string, on sandbox.Support) error {
	err := proc.EndMarked(folder)
	if on.Users == 0 {
		return err
	}
	there, _ := filepath.Glob(filepath.Join(folder, ".mcp", "*", "workspace")) // the pattern is well formed
	for _, dir := range there {
		left, failed := sandbox.New(sandbox.Policy{Workspace: dir}, on)
		if failed == nil {
			failed = left.End()
		}
		err = errors.Join(err, failed)
	}
	return err
}

// forget removes all variables with this prefix from the environment of this process, so that no
// server inherits them.
func forget(prefix string) {
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, prefix) {
			_ = os.Unsetenv(name) // fails only for invalid names
		}
	}
}

// stopTime is how long processes may take to end: longer than package box takes to kill them.
const stopTime = 8 * time.Second
