// Command runner is the program of a box: it connects to the relay, runs stdio
// servers, and ends when there is nothing to do.
//
// It exits with 0 after it fell asleep, 3 when it was fenced by a newer runner of
// the same box, and 1 when it could not do its work.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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

	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/relay"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

const (
	exitFailed = 1
	exitFenced = 3
)

func main() {
	sandbox.Enter(os.Args)
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
		if errors.Is(err, relay.ErrFenced) {
			os.Exit(exitFenced)
		}
		os.Exit(exitFailed)
	}
}

func run(log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server, err := catalog.UnmarshalServer(os.Getenv("DORMOUSE_SERVER"))
	if err != nil {
		return fmt.Errorf("DORMOUSE_SERVER: %w", err)
	}
	gen, err := strconv.ParseInt(os.Getenv(relay.EnvGeneration), 10, 64)
	if err != nil {
		return fmt.Errorf("%s: %w", relay.EnvGeneration, err)
	}
	var linger time.Duration // the relay's own
	if text, ok := os.LookupEnv("DORMOUSE_LINGER"); ok {
		if linger, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("DORMOUSE_LINGER: %w", err)
		}
	}
	work, cache := folders(session.BoxID(os.Getenv(relay.EnvBox)), gen)
	defer func() {
		if err := os.RemoveAll(work); err != nil {
			log.Warn("the workspaces of the box were not removed", "folder", work, "error", err)
		}
		_ = os.Remove(filepath.Dir(work)) // unless a newer runner of the box has its own there
	}()
	b := newBox(server, work, cache, log)
	b.link = relay.NewRunner(relay.RunnerConfig{
		URL: os.Getenv("DORMOUSE_RELAY_URL"), Box: session.BoxID(os.Getenv(relay.EnvBox)), Gen: session.Generation(gen),
		Token: os.Getenv(relay.EnvToken), Task: os.Getenv("DORMOUSE_BOX_TASK"), Idle: server.Idle, Linger: linger, Executor: b, Log: log,
	})
	forget("DORMOUSE_")
	return b.live(ctx)
}

// folders are where processes work and where installs are kept. Those of an earlier
// runner of the box, which was killed, are removed: it did not come to it.
func folders(id session.BoxID, gen int64) (work, cache string) {
	cache = os.Getenv("DORMOUSE_CACHE")
	if cache == "" {
		cache = "/var/cache/dormouse" // below the home of root nobody else can read
		if own, err := os.UserCacheDir(); err == nil && os.Geteuid() != 0 {
			cache = filepath.Join(own, "dormouse")
		}
	}
	sum := sha256.Sum256([]byte(id))
	ours := filepath.Join(cache, "work", hex.EncodeToString(sum[:8]))
	work = filepath.Join(ours, strconv.FormatInt(gen, 10))
	older, err := os.ReadDir(ours)
	if err != nil {
		return work, cache // there is nothing
	}
	for _, e := range older {
		if n, err := strconv.ParseInt(e.Name(), 10, 64); err == nil && n < gen {
			_ = os.RemoveAll(filepath.Join(ours, e.Name())) // if not now, then by the next
		}
	}
	return work, cache
}

// forget takes what the runner was told out of its environment, before there is
// a server that could inherit it.
func forget(prefix string) {
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, prefix) {
			_ = os.Unsetenv(name) // fails for no name that is set
		}
	}
}

// stopTime is what processes get to end; more than the box's own SIGTERM grace.
const stopTime = 8 * time.Second
