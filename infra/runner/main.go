// Package runner is the program of a box. It connects to the relay, runs stdio servers,
// and exits when there is nothing to do.
//
// The relay sets DORMOUSE_BOX, DORMOUSE_GENERATION, DORMOUSE_TOKEN, DORMOUSE_PASS and
// DORMOUSE_ERA. The runner also reads DORMOUSE_SERVER, DORMOUSE_RELAY_URL and, if they
// are set:
//
//	DORMOUSE_CACHE          folder of installs and workspaces; by default the first
//	                        writable one of: the user's cache folder, unless the user
//	                        is root; /var/cache/dormouse; cache beside DORMOUSE_LOGS
//	DORMOUSE_LOCKS          folder of locks, which list the packages of installs; they
//	                        win over those in the cache. By default none
//	DORMOUSE_CACHE_AGE      how long an unused install is kept; by default 720h
//	DORMOUSE_CACHE_MB       limit of all installs in MiB; by default 10240. The least
//	                        recently used go first, and none that is in use
//	DORMOUSE_LOGS           folder for the stderr of servers and the states of their
//	                        processes; by default neither is kept
//	DORMOUSE_SHOW_OUTPUT    "on": clients see the stderr of servers in errors
//	DORMOUSE_BOX_PROCESSES  most processes at a time; by default 256
//	DORMOUSE_BOX_TASK       the fleet's id of the runner's task
//	DORMOUSE_LINGER         how long the runner lingers after its bye
//	DORMOUSE_METRICS        namespace of metrics; by default there are none
//	DORMOUSE_SNAPSHOTS, DORMOUSE_SNAPSHOT_AGE
//	DORMOUSE_PROFILE        folder of the socket for profiles of the runner; see shared/profile
//
// A server that configures no sandbox runs with the rights of the runner. A server with
// a profile, or read_only_rootfs, sees only the system, the interpreters in its PATH,
// its staged files, and its workspace. A server with only limits or network off keeps
// the files of its user. If the runner is root, both kinds get a user of their own. The
// runner logs missing kernel features once. If a missing feature is one that confines
// the server, the runner refuses to start it.
//
// The runner exits with 0 after it fell asleep, 3 if a newer runner of the same box
// fenced it, 4 if it could not reach the relay, and 1 after any other failure.
package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/profile"
	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/relay/runner"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

const (
	exitFailed = 1
	exitFenced = 3
)

// Main is the whole program. It ends the process, also on success. The calling program
// must have called [sandbox.Enter] first: the runner executes the program again to
// confine its servers.
func Main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if os.Getpid() == 1 {
		code, err := supervise("/proc/self/exe", os.Args, os.Environ())
		if err != nil {
			log.Error("the first process failed", "error", err)
			code = exitFailed
		}
		os.Exit(code)
	}
	if err := run(log); err != nil {
		log.Error("the box ended", "code", session.CodeOf(err), "error", err)
		os.Exit(exitCode(err))
	}
}

// exitCode returns the exit code that tells the fleet, and so the host, why the runner
// ended.
func exitCode(err error) int {
	switch {
	case errors.Is(err, runner.ErrFenced):
		return exitFenced
	case errors.Is(err, session.Unavailable):
		return frame.ExitUnreachable
	default:
		return exitFailed
	}
}

func run(log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := profile.Serve(os.Getenv(profile.Environment), "runner"); err != nil {
		return err
	}
	server, err := catalog.UnmarshalServer(os.Getenv("DORMOUSE_SERVER"))
	if err != nil {
		return fmt.Errorf("DORMOUSE_SERVER: %w", err)
	}
	gen, err := strconv.ParseInt(os.Getenv(frame.EnvGeneration), 10, 64)
	if err != nil {
		return fmt.Errorf("%s: %w", frame.EnvGeneration, err)
	}
	var linger time.Duration // the relay's own
	if text, ok := os.LookupEnv("DORMOUSE_LINGER"); ok {
		if linger, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("DORMOUSE_LINGER: %w", err)
		}
	}
	keep, err := newKeeping(os.Getenv("DORMOUSE_SNAPSHOTS"), os.Getenv("DORMOUSE_SNAPSHOT_AGE"))
	if err != nil {
		return err
	}
	installs, err := newKeep(os.Getenv("DORMOUSE_CACHE_AGE"), os.Getenv("DORMOUSE_CACHE_MB"))
	if err != nil {
		return err
	}
	id := session.BoxID(os.Getenv(frame.EnvBox))
	at := place{
		locks: os.Getenv("DORMOUSE_LOCKS"), logs: os.Getenv("DORMOUSE_LOGS"), show: os.Getenv("DORMOUSE_SHOW_OUTPUT") == "on",
		task: os.Getenv("DORMOUSE_BOX_TASK"),
		era:  os.Getenv(frame.EnvEra), on: sandbox.Probe(),
	}
	if at.cache, err = cacheFolder(os.Getenv("DORMOUSE_CACHE"), dataFolder(at.logs)); err != nil {
		return err
	}
	if at.max, err = maxProcesses(os.Getenv("DORMOUSE_BOX_PROCESSES")); err != nil {
		return fmt.Errorf("DORMOUSE_BOX_PROCESSES: %w", err)
	}
	work, release, err := provision.Claim(ctx, filepath.Join(at.cache, "work"), func(folder string) error {
		return endLeftovers(folder, at.on)
	})
	if err != nil {
		return err
	}
	at.work, at.keep = work, keep.keeper(server, id, gen, work, log)
	defer func() {
		if err := errors.Join(proc.EndMarked(work), release()); err != nil {
			log.Warn("what the box has made is not all removed", "folder", work, "error", err)
		}
	}()
	b := newBox(server, at, log)
	defer b.show.remove()
	b.link = runner.New(runner.Config{
		URL: os.Getenv("DORMOUSE_RELAY_URL"), Box: id, Gen: session.Generation(gen),
		Token: os.Getenv(frame.EnvToken), Pass: os.Getenv(frame.EnvPass), Task: at.task, Idle: server.Idle, Linger: linger, Executor: b, Log: log,
		Flush: stopTime + saveTime, // ends as soon as nothing is in flight
	})
	if keep.host != nil {
		keep.host.link = b.link
	}
	forget("DORMOUSE_")
	err = b.live(ctx)
	keep.sweep(context.WithoutCancel(ctx), log)
	tidy(context.WithoutCancel(ctx), at.cache, installs, log)
	return err
}

// maxProcesses returns the most processes that a box runs at a time.
func maxProcesses(text string) (int, error) {
	if text == "" {
		return 256, nil
	}
	n, err := strconv.Atoi(text)
	if err == nil && n < 1 {
		err = errors.New("it must be 1 or more")
	}
	return n, err
}

// endLeftovers ends the processes of a runner that was killed: those that carry the mark
// of its folder, and all processes of the users of its workspaces.
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

// forget removes the runner's settings from its environment, before a server could
// inherit them.
func forget(prefix string) {
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, prefix) {
			_ = os.Unsetenv(name) // fails for no name that is set
		}
	}
}

// stopTime is the time that processes have to end. It is more than the box's own grace.
const stopTime = 8 * time.Second
