// Package fleettest tests what every [fleet.Fleet] promises. The tests of a driver call [Run]
// with a function that makes a [Harness].
package fleettest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// Room is the number of tasks for which the fleet of a harness has room.
const Room = 2

// Harness is an empty fleet with room for [Room] tasks at a time, and functions that control
// its runners.
type Harness struct {
	Fleet fleet.Fleet
	// Waits and Exits3 are values for [fleet.Task].Env. With Waits, a runner runs until it is
	// stopped, and exits with code 0. With Exits3, a runner exits by itself, with code 3.
	Waits, Exits3 map[string]string
	// Ready returns when the runner of a waiting task can take a signal.
	Ready func(t *testing.T, id string)
	// Kill ends the runner of a task with SIGKILL, without a call of the fleet. It is nil for
	// a fleet that runs its runners inside the test program.
	Kill func(t *testing.T, id string)
	// Ended returns when no process of a task runs any more.
	Ended func(t *testing.T, id string)
}

// Run tests the fleets that the function open makes, one for each test. The fleets must end with their
// test. If a fleet does not list its tasks ([fleet.Traits].Lists), Run tests only what fleets without
// lists promise, and needs only the field Fleet of the harness.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	if !open(t).Fleet.Traits("").Lists {
		unlisted(t, rig{open(t), t})
		return
	}
	for name, test := range map[string]func(*testing.T, rig){
		"calls with one token start one task":                    oneToken,
		"a token that was used starts nothing else":              usedToken,
		"a task is listed with what it is for":                   listed,
		"tasks are listed oldest first":                          oldestFirst,
		"the end of a runner is told":                            ends,
		"a stopped runner ends by itself and the reason is kept": stop,
		"a stop of what does not run is no error":                lateStop,
		"a full fleet refuses until a task stops":                full,
		"what cannot be run starts nothing":                      refuses,
	} {
		t.Run(name, func(t *testing.T) { test(t, rig{open(t), t}) })
	}
}

type rig struct {
	Harness
	t *testing.T
}

func (r rig) task(token string, env map[string]string) fleet.Task {
	return fleet.Task{ClientToken: token, Box: "tenant:ä@example.com/echo", Server: "echo", Env: env}
}

func (r rig) run(token string, env map[string]string) string {
	r.t.Helper()
	id, err := r.Fleet.Run(r.t.Context(), r.task(token, env))
	if err != nil || id == "" {
		r.t.Fatalf("run: id %q, %v", id, err)
	}
	return id
}

// waits starts a task with the environment Waits, and returns its id when the task can take a
// signal.
func (r rig) waits(token string) string {
	r.t.Helper()
	id := r.run(token, r.Waits)
	r.Ready(r.t, id)
	return id
}

func (r rig) tasks() []fleet.Status {
	r.t.Helper()
	list, err := r.Fleet.Tasks(r.t.Context())
	commontest.OK(r.t, err)
	return list
}

func (r rig) only() fleet.Status {
	r.t.Helper()
	list := r.tasks()
	if len(list) != 1 {
		r.t.Fatalf("tasks: %+v; want one", list)
	}
	return list[0]
}

func oneToken(t *testing.T, r rig) {
	ids := make(chan string, 8)
	var all sync.WaitGroup
	for range cap(ids) {
		all.Go(func() {
			id, err := r.Fleet.Run(t.Context(), r.task("same", r.Waits))
			commontest.Check(t, err)
			ids <- id
		})
	}
	all.Wait()
	first := r.only().ID
	for range cap(ids) {
		commontest.EqualIn(t, "id", first, <-ids)
	}
}

func usedToken(t *testing.T, r rig) {
	id := r.run("a", r.Exits3)
	r.Ended(t, id)
	other := r.task("a", map[string]string{"OTHER": "value"})
	other.Box, other.Server = "other", "other"
	if again, err := r.Fleet.Run(t.Context(), other); err != nil || again != id {
		t.Errorf("id %s, %v; want %s", again, err, id)
	}
	if s := r.only(); s.State != fleet.Stopped || s.Server != "echo" {
		t.Errorf("%+v", s)
	}
}

func listed(t *testing.T, r rig) {
	id := r.waits("a")
	got := r.only()
	if got.Started.IsZero() {
		t.Error("no time of its start")
	}
	want := r.task("a", nil)
	commontest.Same(t, fleet.Status{
		ID: id, ClientToken: "a", Box: want.Box, Server: want.Server, State: fleet.Running, PID: got.PID, Started: got.Started,
	}, got)
}

func oldestFirst(t *testing.T, r rig) {
	var want []string
	for _, token := range []string{"z", "a", "m"} { // each ends before the next one starts
		id := r.run(token, r.Exits3)
		r.Ended(t, id)
		want = append(want, id)
	}
	var got []string
	for _, s := range r.tasks() {
		got = append(got, s.ID)
	}
	commontest.Same(t, want, got)
}

func ends(t *testing.T, r rig) {
	r.Ended(t, r.run("a", r.Exits3))
	s := r.only()
	if s.State != fleet.Stopped || s.ExitCode != 3 || s.Signal != "" || s.Stopped.Before(s.Started) || s.Reason != "the runner exited with code 3" {
		t.Errorf("%+v", s)
	}
	if r.Kill == nil {
		return
	}
	id := r.waits("b")
	r.Kill(t, id)
	r.Ended(t, id)
	if s := r.tasks()[1]; s.State != fleet.Stopped || s.Signal != "SIGKILL" || s.ExitCode != -1 || s.Reason != "the runner was killed by SIGKILL" {
		t.Errorf("%+v", s)
	}
}

func stop(t *testing.T, r rig) {
	id := r.waits("a")
	commontest.OK(t, r.Fleet.Stop(t.Context(), id, "idle & says ä"))
	r.Ended(t, id)
	if s := r.only(); s.State != fleet.Stopped || s.ExitCode != 0 || s.Signal != "" || s.Reason != "idle & says ä" {
		t.Errorf("%+v", s)
	}
}

func lateStop(t *testing.T, r rig) {
	id := r.run("a", r.Exits3)
	r.Ended(t, id)
	before := r.only()
	for _, id := range []string{"", "nobody", "a/b?c", id} {
		commontest.CheckIn(t, "stop "+id, r.Fleet.Stop(t.Context(), id, "late"))
	}
	commontest.Same(t, before, r.only())
}

func full(t *testing.T, r rig) {
	id := r.waits("a")
	for n := 1; n < Room; n++ {
		r.waits(strings.Repeat("b", n))
	}
	if _, err := r.Fleet.Run(t.Context(), r.task("c", r.Waits)); !errors.Is(err, fleet.ErrCapacity) {
		t.Fatalf("got %v, want %v", err, fleet.ErrCapacity)
	}
	commontest.EqualIn(t, "tasks", Room, len(r.tasks()))
	commontest.OK(t, r.Fleet.Stop(t.Context(), id, "room"))
	r.Ended(t, id)
	r.run("c", r.Waits)
}

// refusesWrong tests that tasks which no fleet can run are refused.
func refusesWrong(t *testing.T, r rig) {
	for name, task := range map[string]fleet.Task{
		"no token":        {},
		"long token":      {ClientToken: strings.Repeat("x", fleet.MaxClientToken+1)},
		"equals in name":  {ClientToken: "t", Env: map[string]string{"A=B": ""}},
		"empty name":      {ClientToken: "t", Env: map[string]string{"": ""}},
		"zero in a value": {ClientToken: "t", Env: map[string]string{"A": "\x00"}},
	} {
		if _, err := r.Fleet.Run(t.Context(), task); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%s: got %v, want %v", name, err, fleet.ErrInvalid)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Fleet.Run(ctx, r.task("a", r.Waits)); !errors.Is(err, context.Canceled) {
		t.Errorf("run with a context that has ended: %v", err)
	}
}

func refuses(t *testing.T, r rig) {
	refusesWrong(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Fleet.Tasks(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("tasks: %v", err)
	}
	if list := r.tasks(); len(list) != 0 {
		t.Errorf("started: %+v", list)
	}
}

// unlisted tests a fleet that does not list its tasks.
func unlisted(t *testing.T, r rig) {
	if can := r.Fleet.Traits(""); can.Lifetime <= 0 || can.StartTimeout <= 0 {
		t.Errorf("%+v: nothing says when a task is dead", can)
	}
	refusesWrong(t, r)
	first := r.run("same", nil)
	if again := r.run("same", nil); again != first || fleet.PlaceOf(first) == "" {
		t.Errorf("ids %s and %s for one token", first, again)
	}
	if list, err := r.Fleet.Tasks(t.Context()); !errors.Is(err, fleet.ErrUnlisted) || list != nil {
		t.Errorf("%v, %v; want %v, which is no empty list", list, err, fleet.ErrUnlisted)
	}
	for _, id := range []string{"", "nobody", first} {
		commontest.CheckIn(t, "stop "+id, r.Fleet.Stop(t.Context(), id, "late"))
	}
	if _, err := r.Fleet.Run(t.Context(), r.task("c", nil)); !errors.Is(err, fleet.ErrCapacity) { // the repeated Run counts as a second task
		t.Errorf("got %v, want %v", err, fleet.ErrCapacity)
	}
}
