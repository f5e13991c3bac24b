package relayserver_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// listedTasks is a fleet with some tasks.
type listedTasks struct {
	noFleet
	tasks   []fleet.Status
	fails   error
	stopped []string
}

func (f *listedTasks) Tasks(context.Context) ([]fleet.Status, error) { return f.tasks, f.fails }

func (f *listedTasks) Stop(_ context.Context, id, _ string) error {
	f.stopped = append(f.stopped, id)
	return nil
}

func TestTheSweepStopsTasksThatNoRecordKnows(t *testing.T) {
	const id = storage.BoxID("t/s")
	token := relayserver.ClientToken(id, 3)
	old := time.Now().Add(-time.Hour)
	record := func(change func(*storage.Box)) *storage.Box {
		b := storage.Box{ID: id, Tenant: "t", Server: "s", Gen: 3, Changed: old}
		change(&b)
		return &b
	}
	awake := func(b *storage.Box) { b.State, b.Task, b.Runner, b.Conn = storage.Awake, "task", "r", "c" }
	tests := map[string]struct {
		box   *storage.Box // nil: there is no record
		state fleet.State
		other fleet.State // state of another task of the box, which has stopped
		stops bool
	}{
		"the record's own, awake": {box: record(awake), state: fleet.Running},
		"the record's own, starting": {box: record(func(b *storage.Box) {
			b.State, b.Until, b.Attempt = storage.Starting, time.Now().Add(time.Minute), 1
		}), state: fleet.Pending},
		"of a box that sleeps":                   {box: record(func(*storage.Box) {}), state: fleet.Running, stops: true},
		"of a box that sleeps, not yet running":  {box: record(func(*storage.Box) {}), state: fleet.Pending, stops: true},
		"of a box that fell asleep a moment ago": {box: record(func(b *storage.Box) { b.Changed = time.Now().Add(-9 * time.Minute) }), state: fleet.Running},
		"of a generation that is over":           {box: record(func(b *storage.Box) { awake(b); b.Gen, b.Task = 4, "another" }), state: fleet.Running, other: fleet.Running, stops: true},
		"of nobody":                              {state: fleet.Running, stops: true},
		"one that has stopped":                   {state: fleet.Stopped},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			store := storagetest.NewMemory()
			if tt.box != nil {
				commontest.OK(t, store.SaveBox(t.Context(), *tt.box))
			}
			f := &listedTasks{tasks: []fleet.Status{
				{ID: "another", Box: string(id), State: cmp.Or(tt.other, fleet.Stopped), ClientToken: "another"},
				{ID: "task", Box: string(id), State: tt.state, ClientToken: token},
			}}
			c := configOf(t, store)
			c.Fleet = f
			commontest.OK(t, relayserver.NewSweeper(c).Sweep(t.Context()))
			if got := slices.Contains(f.stopped, "task"); got != tt.stops || len(f.stopped) > 1 {
				t.Errorf("stopped %v, want it to be stopped: %t", f.stopped, tt.stops)
			}
		})
	}
}

func TestTheSweepEndsWhatWasLostWithoutTheFleetsList(t *testing.T) {
	store := lostBoxes(t, storage.Item{Box: "t/s", ID: "a"})
	c := configOf(t, store)
	down := errors.New("not to be reached")
	c.Fleet = &listedTasks{fails: down}
	if err := relayserver.NewSweeper(c).Sweep(t.Context()); !errors.Is(err, down) {
		t.Errorf("got %v", err)
	}
	if _, final := ended(t, store, "a"); !final {
		t.Error("the request of a box that was lost has no end")
	}
}
