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
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

var errDown = storage.Errorf(storage.Unavailable, "the store does not answer; try again")

// lostBoxes returns a store with boxes that were lost while they had requests. Each item
// names a box and the requests that need an end.
func lostBoxes(t *testing.T, items ...storage.Item) *storagetest.Memory {
	t.Helper()
	store := storagetest.NewMemory()
	seen := map[storage.BoxID]bool{}
	for _, it := range items {
		if !seen[it.Box] {
			seen[it.Box] = true
			commontest.OK(t, store.SaveBox(t.Context(), storage.Box{ID: it.Box, Tenant: "t", Server: "s", Gen: 1, Lost: 1}))
		}
		it.State, it.Gen, it.Address.Session, it.Address.Stream, it.Address.Box = storage.Taken, 1, "one", it.ID, it.Box
		if it.Address.Requests == nil {
			it.Address.Requests = []json.RawMessage{json.RawMessage("1")}
		}
		_, err := store.PutItem(t.Context(), it)
		commontest.OK(t, err)
	}
	return store
}

// The sweep goes on after what it cannot do, and says that there was something.
func TestTheSweepEndsAllThatItCan(t *testing.T) {
	down := errors.New("not to be reached")
	for what, tt := range map[string]struct {
		boxes [2]storage.BoxID
		fails func(*intercept.Call) bool
		list  error
		want  error
		ends  int
	}{
		"one request cannot be ended": {[2]storage.BoxID{"t/s", "t/s"}, func(c *intercept.Call) bool {
			b, appends := c.In.(storage.Batch)
			return appends && b.Stream == "a"
		}, nil, storage.Unavailable, 1},
		"one box cannot be read": {[2]storage.BoxID{"t/a", "t/b"}, nil, nil, storage.Unavailable, 1},
		"the fleet's list":       {[2]storage.BoxID{"t/s", "t/s"}, nil, down, down, 2},
	} {
		t.Run(what, func(t *testing.T) {
			memory := lostBoxes(t, storage.Item{Box: tt.boxes[0], ID: "a"}, storage.Item{Box: tt.boxes[1], ID: "b"})
			read := 0
			c := configOf(t, intercept.New(memory, func(ctx context.Context, call *intercept.Call, do func(context.Context) error) error {
				if call.Method == "Box" {
					read++
				}
				if tt.fails != nil && tt.fails(call) || call.Method == "Box" && read == 1 && tt.boxes[0] != tt.boxes[1] {
					return errDown
				}
				return do(ctx)
			}))
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

func TestBatchWhoseLogIsGoneIsEndedAllTheSame(t *testing.T) {
	both := []json.RawMessage{json.RawMessage("1"), json.RawMessage("2")}
	store := lostBoxes(t, storage.Item{Box: "t/s", ID: "a", Address: storage.Address{Requests: both}})
	commontest.OK(t, store.Append(t.Context(), storage.Batch{
		Session: "one", Stream: "a", First: 1, Gen: 1, Seq: 1, Events: [][]byte{[]byte(`{}`)}, Expires: time.Now().Add(time.Hour),
	}))
	commontest.OK(t, relayserver.NewSweeper(configOf(t, blank{store})).Sweep(t.Context()))
	if tail, err := store.Tail(t.Context(), "one", "a"); err != nil || tail.Last != 3 || !tail.Final {
		t.Errorf("the stream is %+v (%v); want one event and two errors", tail, err)
	}
}

// blank is a store whose reads of the log find nothing.
type blank struct{ storage.Store }

func (blank) Read(context.Context, storage.ID, storage.StreamID, storage.Index, int) (storage.Page, error) {
	return storage.Page{}, nil
}

func TestWakeIsNotTriedForEverWhenTheRecordCannotBeWritten(t *testing.T) {
	store := storagetest.NewFaulty(storagetest.NewMemory(), 1, storagetest.Faults{})
	store.Set("SaveBox", storagetest.Faults{Lost: 1})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	tender, err := relayserver.NewBackend(configOf(t, store)).Deliver(ctx, callOf("t", "s"), storage.Box{ID: "t/s"})
	if err != nil || !tender.(sessions.Handover).Handed() {
		t.Fatalf("got %v, and the item is in the inbox", err)
	}
	if _, err := tender.Check(ctx); storage.CodeOf(err) != storage.Unavailable {
		t.Errorf("got %v, want unavailable", err)
	}
	if n := store.Done(storagetest.Lost); n > 10 {
		t.Errorf("the record was written %d times in vain", n)
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

// The sweep looks at the records, and then at the list, or the other way round.
func TestABoxThatComesUpDuringASweepIsNotLost(t *testing.T) {
	a := newAsylum(t)
	a.stale(func(b *storage.Box) { b.Changed = time.Now().Add(-time.Second) })
	a.tasks = nil
	looked := false
	a.config.Store = intercept.New(a.store, func(ctx context.Context, call *intercept.Call, do func(context.Context) error) error {
		err := do(ctx)
		if call.Method == "Box" && !looked {
			looked = true
			a.tasks = []fleet.Status{{ID: "task", Box: string(asylumBox), State: fleet.Running, ClientToken: relayserver.ClientToken(asylumBox, asylumGen)}}
			a.changes(func(b *storage.Box) { b.State, b.Task, b.Runner, b.Conn = storage.Awake, "task", "r", "c" })
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
		"of a box that sleeps, not yet running":  {box: asleep(time.Hour), state: fleet.Pending, stops: true},
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
