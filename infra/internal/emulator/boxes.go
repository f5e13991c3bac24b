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

// invokedBoxes runs boxes as invocations of a function, as Lambda does. The runner is the
// runtime, and each process is an environment of one box with a TMPDIR of its own. Nothing
// reports the end of an invocation to the functions, as on Lambda. The bill does not count
// these boxes.
type invokedBoxes struct {
	site *local.Site
	pool *lambda.Pool
	api  *lambda.API

	mu  sync.Mutex
	run map[string]fleet.Status // by the id of the task
}

// boxFunction is the name of the function for boxes. It is large enough for every box that
// fits on Lambda.
const (
	boxFunction       = "box"
	boxFunctionMemory = 2048
	// environmentsFolder is the folder in the data folder with the TMPDIR of each
	// environment.
	environmentsFolder = "environments"
	// boxEventAge is how long Lambda tries to start a box.
	boxEventAge = time.Minute
	// boxStopGrace is how long a box has to end its calls and processes, and to save its
	// workspaces, when the machine stops. Some of stopTime is left for what comes after.
	boxStopGrace = 18 * time.Second
	boxLife      = 15 * time.Minute
)

// openInvoked ends what a killed run has left behind, and opens the function for boxes.
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
	delete(env, "DORMOUSE_CACHE") // an environment begins without any install
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

// environment returns the variables that name the function for boxes to all other
// functions. template.yaml sets the same ones.
func (b *invokedBoxes) environment() []string {
	return []string{fmt.Sprintf(`DORMOUSE_BOX_FUNCTIONS=[{"memoryMb":%d,"function":%q}]`, boxFunctionMemory, boxFunction)}
}

// output takes a line of a runner, which names its server.
func (b *invokedBoxes) output(_, line string) {
	b.site.Lines.Box("", "", line)
	_, _ = fmt.Fprintln(b.site.Log, line)
}

// began notes that a process has an invitation.
func (b *invokedBoxes) began(pid int, event []byte) {
	var i fleet.Invitation
	if json.Unmarshal(event, &i) != nil || i.Task == "" {
		return // the runner refuses it
	}
	s := i.End()
	s.State, s.PID, s.Started = fleet.Running, pid, time.Now()
	b.mu.Lock()
	b.run[i.Task] = s
	b.mu.Unlock()
	b.site.Recorder.Record(journal.Event{Kind: journal.BoxWake, Name: i.Server, Detail: i.Box})
}

// ended notes the end of an invocation. Its answer is the status of the task.
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
		e.Kind, e.Detail = journal.BoxCrash, failed.Error()
	case end.ExitCode != 0:
		e.Kind, e.Detail = journal.BoxCrash, fmt.Sprintf("exit code %d %s", end.ExitCode, end.Reason)
	case !b.site.Stopping():
		b.site.Lines.Asleep(i.Server)
	}
	b.site.Recorder.Record(e)
}

// clean ends what an environment has left running, and removes its files. On Lambda both
// end with the virtual machine.
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

// close ends the boxes. They say bye first, if they can.
func (b *invokedBoxes) close(ctx context.Context) {
	err := b.pool.Close(ctx)
	if err := errors.Join(err, b.api.Close(ctx)); err != nil {
		b.site.Logger.Warn("boxes did not end in time", "error", err)
	}
}
