package ecs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// started makes a fleet with one task, "a".
func started(t *testing.T) (*fake, *Fleet) {
	t.Helper()
	f := newFake()
	x := open(t, f, nil)
	runs(t, x, "a")
	return f, x
}

func only(t *testing.T, x *Fleet) fleet.Status {
	t.Helper()
	list, err := x.Tasks(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("tasks: %+v, %v; want one", list, err)
	}
	return list[0]
}

func TestATaskMovesForwardThroughECSsStates(t *testing.T) {
	f, x := started(t)
	for status, want := range map[string]fleet.State{
		"PROVISIONING": fleet.Pending, "PENDING": fleet.Pending, "ACTIVATING": fleet.Pending,
		"RUNNING": fleet.Running, "DEACTIVATING": fleet.Running, "STOPPING": fleet.Running,
		"DEPROVISIONING": fleet.Stopped, "STOPPED": fleet.Stopped,
	} {
		f.move(t, "a", func(task *fakeTask) {
			ends(0)(task)
			if task.status = status; want != fleet.Stopped {
				task.code, task.executionStopped, task.desired = nil, time.Time{}, "RUNNING"
			}
			if task.started = (time.Time{}); want != fleet.Pending {
				task.started = time.Now()
			}
		})
		commontest.EqualIn(t, status+" is", want, only(t, x).State)
	}
}

// Other ends are those of the events in TestEventsOfTasksAreRead.
func TestTheEndOfATaskIsTold(t *testing.T) {
	one, noSignal := 1, 255
	for why, change := range map[string]func(*fakeTask){
		"the runner did not come into the box: the log of the container fetch has the cause": func(task *fakeTask) {
			task.code, task.stopCode, task.reason, task.firstCode = nil, "TaskFailedToStart", "Task failed to start", &one
		},
		"ResourceInitializationError: no route": func(task *fakeTask) {
			task.code, task.stopCode, task.reason = nil, "TaskFailedToStart", "ResourceInitializationError: no route"
		},
		"the runner exited with code 255": func(task *fakeTask) { task.code = &noSignal },
	} {
		f, x := started(t)
		f.move(t, "a", ends(0))
		f.move(t, "a", change)
		commontest.EqualIn(t, "the reason", why, only(t, x).Reason)
	}
}

func TestAListOfManyPagesIsWhole(t *testing.T) {
	f := newFake()
	f.room, f.pageSize = 300, 7
	x := open(t, f, nil)
	var want []string
	for n := range 250 {
		id, err := x.Run(t.Context(), taskFor(fmt.Sprintf("t%03d", n)))
		commontest.OK(t, err)
		want = append(want, id)
		if n%2 == 0 {
			f.move(t, id, ends(0))
		}
	}
	list, err := x.Tasks(t.Context())
	commontest.OK(t, err)
	var got []string
	for _, s := range list {
		got = append(got, s.ID)
	}
	commontest.Same(t, want, got)
	commontest.EqualIn(t, "descriptions, want 3 of at most 100 tasks", 3, f.actions()["DescribeTasks"])
}

// A task may change while the fleet lists it: it asks for two lists, and then for descriptions.
func TestTasksThatAreListed(t *testing.T) {
	for what, tt := range map[string]struct {
		happens func(t *testing.T, f *fake)
		want    int
	}{
		"stopped long ago": {func(t *testing.T, f *fake) {
			f.move(t, "a", ends(0))
			time.Sleep(fleet.Remembered + 2*time.Second)
		}, 0},
		"of others": {func(t *testing.T, f *fake) {
			f.move(t, "a", func(task *fakeTask) { task.group = "family:web" })
		}, 0},
		"stops between the lists": {func(_ *testing.T, f *fake) {
			f.after = func(action string, _ map[string]any) *answer {
				if action == "ListTasks" && f.tasks[0].status != "STOPPED" {
					ends(0)(f.tasks[0])
				}
				return nil
			}
		}, 1},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, x := started(t)
				tt.happens(t, f)
				if list, err := x.Tasks(t.Context()); err != nil || len(list) != tt.want || tt.want > 0 && list[0].State != fleet.Stopped {
					t.Errorf("%+v, %v; want %d that have stopped", list, err, tt.want)
				}
			})
		})
	}
}

// ECS may not list a task yet. A start with its token must still find it.
func TestATaskThatIsNotListedYetIsNotStartedTwice(t *testing.T) {
	f, x := started(t)
	f.move(t, "a", func(task *fakeTask) { task.hidden = true })
	again := taskFor("a")
	again.Env["A"] = "another one-time token"
	if id, err := x.Run(t.Context(), again); err != nil || id != "ecs/a" {
		t.Errorf("id %q, %v", id, err)
	}
	commontest.Check(t, x.Stop(t.Context(), "a", "early"))
	f.move(t, "a", func(task *fakeTask) { task.hidden = false })
	commontest.Equal(t, fleet.Pending, only(t, x).State)
}

func event(t *testing.T, name string) json.RawMessage {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "events", name+".json"))
	commontest.OK(t, err)
	var e struct {
		DetailType string `json:"detail-type"`
		Detail     json.RawMessage
	}
	commontest.OK(t, json.Unmarshal(raw, &e))
	if e.DetailType != EventDetailType {
		t.Fatalf("detail type %q", e.DetailType)
	}
	return e.Detail
}

func TestEventsOfTasksAreRead(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339Nano, s)
		commontest.OK(t, err)
		return v
	}
	const token = "q4C0mXyG2b1yZtQJ8nXo5wq1o5m3k0o9s7d2f4h6j8k"
	whole := fleet.Status{
		ID: "ecs/" + token, ClientToken: token, Box: "acme/everything", Server: "everything", State: fleet.Stopped,
		Started: at("2026-11-21T12:00:31.5Z"), Stopped: at("2026-11-21T12:10:02.25Z"),
	}
	with := func(change func(*fleet.Status)) fleet.Status {
		s := whole
		change(&s)
		return s
	}
	for name, want := range map[string]fleet.Status{
		"sweep-task-asleep": with(func(s *fleet.Status) { s.Reason = "the runner exited with code 0" }),
		"sweep-task-killed": with(func(s *fleet.Status) {
			s.ExitCode, s.Signal, s.Reason = -1, "SIGKILL", "OutOfMemoryError: Container killed due to memory usage"
		}),
		"sweep-task-spot": with(func(s *fleet.Status) {
			s.ExitCode, s.Signal, s.Reason = -1, "SIGTERM", "Your Spot Task was interrupted."
		}),
		"sweep-task-no-image": with(func(s *fleet.Status) {
			s.Started, s.ExitCode, s.Reason = time.Time{}, -1, "CannotPullContainerError: pull image manifest has been retried 1 time(s): not found"
		}),
		"sweep-task-running": with(func(s *fleet.Status) { s.State, s.Stopped = fleet.Running, time.Time{} }),
	} {
		got, ours, err := TaskEvent(event(t, name))
		if err != nil || !ours {
			t.Errorf("%s: ours %t, %v", name, ours, err)
		}
		commontest.SameIn(t, name, want, got)
	}
}

func TestAnEventOfSomebodyElsesTaskIsNotOurs(t *testing.T) {
	detail := []byte(`{"group":"service:web","startedBy":"ecs-svc/1","lastStatus":"STOPPED","containers":[]}`)
	if s, ours, err := TaskEvent(detail); err != nil || ours || s != (fleet.Status{}) {
		t.Errorf("%+v, %t, %v", s, ours, err)
	}
}

func TestFargateSizesAreRoundedUp(t *testing.T) {
	for in, want := range map[Size]Size{
		{}:           {0.25, 512},
		{0.25, 1025}: {0.25, 2048},
		{0.25, 2049}: {0.5, 3072},
		{1, 8193}:    {2, 9216},
		{5, 20000}:   {8, 20480},
		{16, 122880}: {16, 122880},
		{16, 122881}: {},
		{16.1, 0}:    {},
	} {
		if got, err := in.Fargate(); got != want || (want == Size{}) != errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%v: got %v, %v; want %v", in, got, err, want)
		}
	}
}
