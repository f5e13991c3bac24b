package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// environment has the settings of a box. In a Lambda function the settings come from the host, and
// are never in the environment of a process.
type environment map[string]string

func ownEnvironment() environment {
	env := environment{}
	for _, pair := range os.Environ() {
		if name, value, ok := strings.Cut(pair, "="); ok {
			env[name] = value
		}
	}
	return env
}

func (e environment) lookup(name string) (string, bool) {
	value, ok := e[name]
	return value, ok
}

// assignment returns which box this runner runs, and how it connects to the host.
func assignment(env environment, log *slog.Logger) (runner.Config, error) {
	gen, err := strconv.ParseInt(env[frame.EnvGeneration], 10, 64)
	if err != nil {
		return runner.Config{}, fmt.Errorf("%s: %w", frame.EnvGeneration, err)
	}
	return runner.Config{
		URL: env[frame.EnvRelayURL], Box: storage.BoxID(env[frame.EnvBox]), Gen: storage.Generation(gen), Token: env[frame.EnvToken],
		Pass: env[frame.EnvPass], Task: env["DORMOUSE_BOX_TASK"], Log: log,
		Flush: DrainTime + stopTime + saveTime, // an upper limit, because the runner ends as soon as nothing is in flight
	}, nil
}

// prepared is a box that is ready to run, with its folders on this machine.
type prepared struct {
	server  serversfile.Server
	at      setup
	box     *adapter
	release func() error
	cleared sync.Once
	log     *slog.Logger
}

// supported returns the result of [sandbox.Probe]. It is kept, because Probe takes sixty system
// calls.
var supported = sync.OnceValue(sandbox.Probe)

// prepare makes the box of c from its settings in env. The argument own is the environment of this
// program without these settings. The caller must call remove.
func prepare(ctx context.Context, env, own environment, c runner.Config, guarded *guard.Guard) (*prepared, error) {
	server, err := serversfile.UnmarshalServer(env["DORMOUSE_SERVER"])
	if err != nil {
		return nil, fmt.Errorf("DORMOUSE_SERVER: %w", err)
	}
	keep, err := newKeeping(env["DORMOUSE_SNAPSHOTS"], env["DORMOUSE_SNAPSHOT_AGE"])
	if err != nil {
		return nil, err
	}
	at := setup{
		keep: keep, box: c.Box, gen: int64(c.Gen), locks: env["DORMOUSE_LOCKS"], logs: env["DORMOUSE_LOGS"], show: env["DORMOUSE_SHOW_OUTPUT"] == "on",
		task: c.Task, era: wire.Era(env[frame.EnvEra]), on: supported(), env: env, own: own, guard: guarded, baked: env["DORMOUSE_BAKED"],
	}
	if text := env[frame.EnvImage]; text != "" {
		if err := json.Unmarshal([]byte(text), &at.image); err != nil {
			return nil, fmt.Errorf("%s: %w", frame.EnvImage, err)
		}
	}
	data := "" // the folder of this machine's data
	if at.logs != "" {
		data = filepath.Dir(at.logs)
	}
	if at.cache, err = provision.CacheFolder(env["DORMOUSE_CACHE"], data); err != nil {
		return nil, err
	}
	bury := func(folder string) error { return endLeftovers(folder, at.on) }
	name := ""
	if server.Box.Memory { // the memory of a process contains paths, so the folder must have the same path again
		name = string(c.Box)
	}
	var release func() error
	if at.work, release, err = provision.Claim(ctx, filepath.Join(at.cache, "work"), name, bury); err != nil {
		return nil, err
	}
	if at.installs, err = keep.installsOf(env["DORMOUSE_INSTALLS"], at.logs != "", string(at.box), at.gen, at.work, c.Log); err != nil {
		return nil, errors.Join(err, release())
	}
	if at.installs != nil {
		at.installs.guard = guarded
	}
	return &prepared{server: server, at: at, box: newBox(server, at, c.Log), release: release, log: c.Log}, nil
}

// connect gives the box its link to the host, before any process is started.
func (p *prepared) connect(link frame.Link) {
	p.box.link = link
	if p.at.keep.host != nil {
		*p.at.keep.host = link
	}
}

// remove kills what still runs of the box, deletes its files, and releases its installs.
func (p *prepared) remove() {
	p.clear()
	p.box.provisioner.Close()
}

// clear kills what still runs of the box, and deletes its files. Another box may get the same
// folder afterwards, so only the first call has an effect.
func (p *prepared) clear() {
	p.cleared.Do(func() {
		p.box.show.remove()
		if err := errors.Join(proc.EndMarked(p.at.work), p.release()); err != nil {
			p.log.Warn("some files of the box were not removed", "folder", p.at.work, "error", err)
		}
	})
}

// Limits of the install cache.
const (
	cacheAge   = 30 * 24 * time.Hour // an install that was unused for this long is removed
	cacheBytes = 10 << 30            // above this size, the installs that were unused for longest are removed
	tidyTime   = 20 * time.Second    // how long a shutdown waits for the removal
)

// tidy removes snapshots that were unused for a long time, and the installs in the cache that exceed
// cacheAge or cacheBytes.
func (p *prepared) tidy(ctx context.Context) {
	p.at.keep.sweep(ctx, p.log)
	ctx, cancel := context.WithTimeout(ctx, tidyTime)
	defer cancel()
	n, err := provision.Tidy(ctx, p.at.cache, provision.Keep{Age: cacheAge, Bytes: cacheBytes})
	if err != nil {
		p.log.Warn("some unused installs were not removed", "error", err)
	}
	if n > 0 {
		p.log.Info("installs removed that nobody used", "count", n)
	}
}
