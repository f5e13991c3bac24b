package relayserver_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

var errDown = storage.Errorf(storage.Unavailable, "the store does not answer; try again")

// failsOnce is a store whose first call of a method fails.
func failsOnce(store storage.Store, method string) storage.Store {
	var failed atomic.Bool
	return intercept.New(store, func(ctx context.Context, call *intercept.Call, do func(context.Context) error) error {
		if call.Method == method && !failed.Swap(true) {
			return errDown
		}
		return do(ctx)
	})
}

// lostBoxes returns a store with two boxes that were lost while each had a request.
func lostBoxes(t *testing.T) *storagetest.Memory {
	t.Helper()
	store := storagetest.NewMemory()
	for _, id := range []storage.StreamID{"a", "b"} {
		box := storage.BoxID("t/" + id)
		_, err := store.PutItem(t.Context(), storage.Item{
			Box: box, ID: id, State: storage.Taken, Gen: 1,
			Address: storage.Address{Session: "one", Stream: id, Box: box, Requests: []json.RawMessage{json.RawMessage("1")}},
		})
		commontest.OK(t, errors.Join(err, store.SaveBox(t.Context(), storage.Box{ID: box, Tenant: "t", Server: "s", Gen: 1, Lost: 1})))
	}
	return store
}

// The sweep goes on after what it cannot do, and says that there was something.
func TestTheSweepEndsAllThatItCan(t *testing.T) {
	down := errors.New("not to be reached")
	for what, tt := range map[string]struct {
		fails string // the method of the store that fails once
		list  error
		want  error
		ends  int
	}{
		"one request cannot be ended": {"Append", nil, storage.Unavailable, 1},
		"one box cannot be read":      {"Box", nil, storage.Unavailable, 1},
		"the fleet's list":            {"", down, down, 2},
	} {
		t.Run(what, func(t *testing.T) {
			memory := lostBoxes(t)
			c := configOf(t, failsOnce(memory, tt.fails))
			c.Fleet = &asylum{fails: tt.list, can: fleet.Traits{Lists: true}}
			if err := relayserver.NewSweeper(c).Sweep(t.Context()); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			ends := 0
			for _, stream := range []storage.StreamID{"a", "b"} {
				tail, err := memory.Tail(t.Context(), "one", stream)
				commontest.OK(t, err)
				if tail.Final {
					ends++
				}
			}
			commontest.EqualIn(t, "requests that have an end", tt.ends, ends)
		})
	}
}

// stale returns a box that a program is starting.
func (a *asylum) stale(change func(*storage.Box)) {
	a.changes(func(b *storage.Box) {
		b.State, b.Task, b.Runner, b.Conn, b.Owner, b.TokenHash, b.Attempt = storage.Starting, "", "", "", "gone", "hash", 1
		b.Changed, b.Until = time.Now().Add(-time.Minute), time.Now().Add(2*time.Minute)
		change(b)
	})
}

// A program may end after it has taken the wake lease and before it has started the task. The
// sweep then starts the box again, once. So it does if the clock was set back since then.
func TestSweepRepeatsAStartThatWasLostWithTheProgram(t *testing.T) {
	for name, c := range map[string]struct {
		since time.Duration // from the lease until the fleet began
		until time.Duration
		want  int
	}{
		"of an earlier run":      {time.Second, 2 * time.Minute, 1},
		"of this run":            {-time.Second, 2 * time.Minute, 0},
		"longer than any may be": {-time.Second, time.Hour, 1},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAsylum(t)
			a.stale(func(b *storage.Box) { b.Until = time.Now().Add(c.until) })
			a.tasks, a.can.Since = nil, a.box().Changed.Add(c.since)
			var log bytes.Buffer
			a.config.Log = slog.New(slog.NewTextHandler(&log, nil))
			a.sweep()
			commontest.EqualIn(t, "starts that the alarm hears of", c.want, strings.Count(log.String(), "box start failed"))
			a.tasks = []fleet.Status{{ID: "task-2", Box: string(asylumBox), State: fleet.Pending, ClientToken: relayserver.ClientToken(asylumBox, asylumGen+1)}}
			a.sweep()
			commontest.EqualIn(t, "starts", c.want, a.starts)
			commontest.EqualIn(t, "generations begun", storage.Generation(c.want), a.box().Gen-asylumGen)
		})
	}
}

// comesUp is a fleet whose box comes up once the list of tasks was read.
type comesUp struct {
	*asylum
	up func()
}

func (f comesUp) Tasks(context.Context) ([]fleet.Status, error) {
	defer f.up()
	return f.tasks, nil
}

// The box comes up after the first look of the sweep, at the records or at the list.
func TestABoxThatComesUpDuringASweepIsNotLost(t *testing.T) {
	a := newAsylum(t)
	a.stale(func(b *storage.Box) { b.Changed = time.Now().Add(-time.Second) })
	a.tasks = nil
	up := sync.OnceFunc(func() {
		a.tasks = []fleet.Status{{ID: "task", Box: string(asylumBox), State: fleet.Running, ClientToken: relayserver.ClientToken(asylumBox, asylumGen)}}
		a.changes(func(b *storage.Box) { b.State, b.Task, b.Runner, b.Conn = storage.Awake, "task", "r", "c" })
	})
	a.config.Fleet = comesUp{a, up}
	a.config.Store = intercept.New(a.store, func(ctx context.Context, call *intercept.Call, do func(context.Context) error) error {
		err := do(ctx)
		if call.Method == "Box" {
			up()
		}
		return err
	})
	a.sweep()
	if b := a.box(); b.State != storage.Awake || b.Lost != 0 {
		t.Errorf("the box came up, and is recorded in state %q with generation %d lost", b.State, b.Lost)
	}
}

func TestTheSweepStopsTasksThatNoRecordKnows(t *testing.T) {
	ago := func(d time.Duration) func(*storage.Box) {
		return func(b *storage.Box) { b.Changed = time.Now().Add(-d) }
	}
	asleep := func(d time.Duration) func(*storage.Box) {
		return func(b *storage.Box) { b.State, b.Task, b.Changed = storage.Asleep, "", time.Now().Add(-d) }
	}
	for name, tt := range map[string]struct {
		box   func(*storage.Box)
		state fleet.State
		of    storage.BoxID
		stops bool
	}{
		"the record's own, awake": {box: ago(time.Hour), state: fleet.Running},
		"the record's own, starting": {box: func(b *storage.Box) {
			b.State, b.Task, b.Until, b.Attempt, b.Changed = storage.Starting, "", time.Now().Add(time.Minute), 1, time.Now().Add(-time.Hour)
		}, state: fleet.Pending},
		"of a box that sleeps":                   {box: asleep(time.Hour), state: fleet.Running, stops: true},
		"of a box that fell asleep a moment ago": {box: asleep(9 * time.Minute), state: fleet.Running},
		"of a generation that is over": {box: func(b *storage.Box) {
			b.Gen, b.Task, b.Changed = b.Gen+1, "another", time.Now().Add(-time.Hour)
		}, state: fleet.Running, stops: true},
		"of nobody":            {box: ago(time.Hour), state: fleet.Running, of: "t/x", stops: true},
		"one that has stopped": {box: asleep(time.Hour), state: fleet.Stopped},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAsylum(t)
			a.changes(tt.box)
			of := cmp.Or(tt.of, asylumBox)
			a.tasks = []fleet.Status{
				{ID: "another", Box: string(asylumBox), State: fleet.Running, ClientToken: relayserver.ClientToken(asylumBox, a.box().Gen)},
				{ID: "task", Box: string(of), State: tt.state, ClientToken: relayserver.ClientToken(of, asylumGen)},
			}
			if a.box().State != storage.Awake || a.box().Task == "task" {
				a.tasks = a.tasks[1:]
			}
			a.sweep()
			commontest.EqualIn(t, "it is stopped", tt.stops, slices.Contains(a.stopped, "task"))
			commontest.EqualIn(t, "others are stopped", false, slices.Contains(a.stopped, "another"))
		})
	}
}

// A runner may be killed just after its hello. The report of its end and the hello then change the
// record at the same time.
func TestTheEndOfATaskIsNotLostBesideItsHello(t *testing.T) {
	a := newAsylum(t)
	a.stale(func(*storage.Box) {})
	a.waits()
	a.config.Store = a.before("SaveBox", func() {
		a.changes(func(b *storage.Box) { b.State, b.Task, b.Runner, b.Conn = storage.Awake, "task", "r", "c" })
	})
	end := fleet.Status{ID: "task", Box: string(asylumBox), ClientToken: relayserver.ClientToken(asylumBox, asylumGen), State: fleet.Stopped, ExitCode: -1, Signal: "SIGKILL"}
	commontest.OK(t, relayserver.NewSweeper(a.config).Stopped(t.Context(), end))
	commontest.EqualIn(t, "starts for the call that waits", 1, a.starts)
	commontest.EqualIn(t, "state", storage.Starting, a.box().State)
}
