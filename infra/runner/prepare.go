package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/box/memory"
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

// assignment says which box this runner runs, and how it connects to the host.
type assignment struct {
	box   storage.BoxID
	gen   int64
	token string
	pass  string
	relay string
	task  string
}

func readAssignment(env environment) (assignment, error) {
	gen, err := strconv.ParseInt(env[frame.EnvGeneration], 10, 64)
	if err != nil {
		return assignment{}, fmt.Errorf("%s: %w", frame.EnvGeneration, err)
	}
	return assignment{
		box: storage.BoxID(env[frame.EnvBox]), gen: gen, token: env[frame.EnvToken], pass: env[frame.EnvPass],
		relay: env[frame.EnvRelayURL], task: env["DORMOUSE_BOX_TASK"],
	}, nil
}

// config returns the configuration with which the runner connects to the host.
func (a assignment) config(log *slog.Logger) runner.Config {
	return runner.Config{
		URL: a.relay, Box: a.box, Gen: storage.Generation(a.gen), Token: a.token, Pass: a.pass, Task: a.task, Log: log,
		Flush: DrainTime + stopTime + saveTime, // an upper limit, because the runner ends as soon as nothing is in flight
	}
}

// prepared is a box that is ready to run, with its folders on this machine.
type prepared struct {
	server  serversfile.Server
	box     *adapter
	keep    keeping
	cache   string
	work    string
	release func() error
	cleared sync.Once
	log     *slog.Logger
}

// supported returns the result of [sandbox.Probe]. It is kept, because Probe takes sixty system
// calls.
var supported = sync.OnceValue(sandbox.Probe)

// prepare makes a box from its settings in env. The argument own is the environment of this program
// without these settings. The caller must call remove.
func prepare(ctx context.Context, env, own environment, a assignment, log *slog.Logger, guarded *guard.Guard) (*prepared, error) {
	server, err := serversfile.UnmarshalServer(env["DORMOUSE_SERVER"])
	if err != nil {
		return nil, fmt.Errorf("DORMOUSE_SERVER: %w", err)
	}
	p := &prepared{server: server, log: log}
	if p.keep, err = newKeeping(env["DORMOUSE_SNAPSHOTS"], env["DORMOUSE_SNAPSHOT_AGE"]); err != nil {
		return nil, err
	}
	at := setup{
		locks: env["DORMOUSE_LOCKS"], logs: env["DORMOUSE_LOGS"], show: env["DORMOUSE_SHOW_OUTPUT"] == "on",
		task: a.task, era: wire.Era(env[frame.EnvEra]), on: supported(), env: env, own: own, guard: guarded, baked: env["DORMOUSE_BAKED"],
	}
	if at.image, err = readImage(env[frame.EnvImage]); err != nil {
		return nil, fmt.Errorf("%s: %w", frame.EnvImage, err)
	}
	if at.cache, err = provision.CacheFolder(env["DORMOUSE_CACHE"], dataFolder(at.logs)); err != nil {
		return nil, err
	}
	bury := func(folder string) error { return endLeftovers(folder, at.on) }
	name := ""
	if server.Box.Memory { // the memory of a process contains paths, so the folder must have the same path again
		name = string(a.box)
	}
	if at.work, p.release, err = provision.Claim(ctx, filepath.Join(at.cache, "work"), name, bury); err != nil {
		return nil, err
	}
	p.cache, p.work = at.cache, at.work
	at.keep = func(s serversfile.Server) box.Keeper { return p.keep.keeper(s, a.box, a.gen, at.work, log) }
	at.remember = func(k box.Keeper) (*memory.Kept, error) { return p.keep.memory(k, a.box, a.gen) }
	if at.installs, err = p.keep.installsOf(env["DORMOUSE_INSTALLS"], at.logs != "", string(a.box), a.gen, at.work, log); err != nil {
		return nil, errors.Join(err, p.release())
	}
	if at.installs != nil {
		at.installs.guard = guarded
	}
	p.box = newBox(server, at, log)
	return p, nil
}

// connect gives the box its link to the host, before any process is started.
func (p *prepared) connect(link frame.Link) {
	p.box.link = link
	if p.keep.host != nil {
		p.keep.host.link = link
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
		if err := errors.Join(proc.EndMarked(p.work), p.release()); err != nil {
			p.log.Warn("some files of the box were not removed", "folder", p.work, "error", err)
		}
	})
}

// tidy removes snapshots and installs that were unused for a long time.
func (p *prepared) tidy(ctx context.Context) {
	p.keep.sweep(ctx, p.log)
	tidy(ctx, p.cache, p.log)
}
