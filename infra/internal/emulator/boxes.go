package emulator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/box/proc"
)

// invokedBoxes runs each box as an invocation of a function, as on Lambda. Each process of the
// function serves one box, and has a TMPDIR of its own. The bill that dormouse run shows leaves out
// these boxes.
type invokedBoxes struct {
	site *local.Site
	pool *lambda.Pool
	api  *lambda.API

	mu  sync.Mutex
	run map[string]fleet.Status // by the id of the task
}

const (
	// boxFunction is the name of the function that runs boxes. It has as much memory, in MB,
	// as the largest one of infra/stack/boxes.yaml.
	boxFunction       = "box"
	boxFunctionMemory = 2048
	// environmentsFolder is the folder in the data folder with the TMPDIR of each process of
	// boxFunction.
	environmentsFolder = "environments"
	// boxEventAge is how long Lambda tries to start a box.
	boxEventAge = time.Minute
	// boxStopGrace is how long a box has to end its calls and processes, and to save its
	// workspaces, when dormouse run stops. The whole stop may take 20 seconds (stopTime in
	// package local), so some time is left for the functions.
	boxStopGrace = 18 * time.Second
	boxLife      = 15 * time.Minute
)

// openInvoked opens the function for boxes. Before that, it kills the processes and removes the
// files that an earlier, killed run has left behind.
func openInvoked(e *emulated) (*invokedBoxes, error) {
	site := e.site
	folder := site.Folder.File(environmentsFolder)
	if err := errors.Join(proc.EndMarked(folder), os.RemoveAll(folder)); err != nil {
		return nil, fmt.Errorf("remove the environments of an earlier run: %w", err)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the boxes' environments: %w", err)
	}
	b := &invokedBoxes{site: site, run: map[string]fleet.Status{}}
	env := maps.Clone(site.BoxEnv)
	delete(env, "DORMOUSE_CACHE") // as on Lambda, a new process has no installed packages
	env["DORMOUSE_INSTALLS"] = "folder:" + site.Folder.File("installs")
	var list []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	var err error
	b.pool, err = lambda.NewPool(lambda.PoolConfig{
		SleepAfter: e.SleepAfter, Recorder: site.Recorder, Logger: site.Logger, Env: list, StopGrace: boxStopGrace,
		Output: b.output, Began: b.began,
		Functions: []lambda.FunctionConfig{{
			Name: boxFunction, Path: site.Runner[0], Args: site.Runner[1:], Temp: folder, Clean: b.clean,
			Timeout: cmp.Or(e.BoxLife, boxLife), MaxInstances: maxBoxes,
		}},
	})
	if err != nil {
		return nil, err
	}
	b.api = lambda.NewAPI(lambda.APIConfig{Pool: b.pool, Tenants: true, RetryWait: time.Minute, Tries: 1, EventAge: boxEventAge, Ended: b.ended, Logger: site.Logger})
	return b, nil
}

// environment returns the variable that tells other functions about boxFunction. On AWS,
// template.yaml sets it.
func (b *invokedBoxes) environment() []string {
	return []string{fmt.Sprintf(`DORMOUSE_BOX_FUNCTIONS=[{"memoryMb":%d,"function":%q}]`, boxFunctionMemory, boxFunction)}
}

// output handles a log line of a runner. The line itself names the server.
func (b *invokedBoxes) output(_, line string) {
	b.site.Lines.Box("", "", line)
	_, _ = fmt.Fprintln(b.site.Log, line)
}

// began records that a process has got an invocation, whose event is a [fleet.Invitation].
func (b *invokedBoxes) began(pid int, event []byte) {
	var i fleet.Invitation
	if json.Unmarshal(event, &i) != nil || i.Task == "" {
		return // the runner refuses such an event
	}
	s := i.End()
	s.State, s.PID, s.Started = fleet.Running, pid, time.Now()
	b.mu.Lock()
	b.run[i.Task] = s
	b.mu.Unlock()
	b.site.Recorder.Record(journal.Event{Kind: journal.BoxWake, Name: i.Server, Detail: i.Box})
}

// ended records that an invocation has ended. The argument answer is the [fleet.Status] of the box.
func (b *invokedBoxes) ended(event, answer []byte, failed error) {
	var i fleet.Invitation
	if json.Unmarshal(event, &i) != nil {
		return
	}
	b.mu.Lock()
	s := b.run[i.Task]
	delete(b.run, i.Task)
	b.mu.Unlock()
	var end fleet.Status
	if failed == nil {
		failed = json.Unmarshal(answer, &end)
	}
	e := journal.Event{Kind: journal.BoxSleep, Name: i.Server, Duration: time.Since(s.Started)}
	switch {
	case failed != nil:
		e.Kind, e.Reason = journal.BoxCrash, failed.Error()
	case end.ExitCode != 0:
		e.Kind, e.Reason = journal.BoxCrash, fmt.Sprintf("exit code %d %s", end.ExitCode, end.Reason)
	case !b.site.Stopping():
		b.site.Lines.Asleep(i.Server)
	}
	b.site.Recorder.Record(e)
}

// clean kills the processes that a runner has left running, and removes its folder.
func (b *invokedBoxes) clean(folder string) {
	if err := errors.Join(proc.EndMarked(folder), os.RemoveAll(folder)); err != nil {
		b.site.Logger.Warn("an environment of a box was not removed", "folder", folder, "error", err)
	}
}

func (b *invokedBoxes) tasks() []fleet.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.SortedFunc(maps.Values(b.run), func(x, y fleet.Status) int { return strings.Compare(x.ID, y.ID) })
}

// close stops the runners. If there is time, each one first saves its state, and tells the relay
// function that the box now sleeps.
func (b *invokedBoxes) close(ctx context.Context) {
	err := b.pool.Close(ctx)
	if err := errors.Join(err, b.api.Close(ctx)); err != nil {
		b.site.Logger.Warn("boxes did not end in time", "error", err)
	}
}
