package relayserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// partlyDown is a store that fails for one box and for one stream. If blank is set, its
// reads of the log find nothing.
type partlyDown struct {
	storage.Store
	box    storage.BoxID
	stream storage.StreamID
	blank  bool
}

var errDown = storage.Errorf(storage.Unavailable, "the store does not answer; try again")

func (s partlyDown) Box(ctx context.Context, id storage.BoxID) (storage.Box, error) {
	if id == s.box {
		return storage.Box{}, errDown
	}
	return s.Store.Box(ctx, id)
}

func (s partlyDown) Append(ctx context.Context, b storage.Batch) error {
	if b.Stream == s.stream {
		return errDown
	}
	return s.Store.Append(ctx, b)
}

func (s partlyDown) Read(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, limit int) (storage.Page, error) {
	if s.blank {
		return storage.Page{}, nil
	}
	return s.Store.Read(ctx, id, stream, after, limit)
}

// noFleet runs nothing.
type noFleet struct{}

func (noFleet) Run(context.Context, fleet.Task) (string, error) {
	return "", errors.New("nothing is run here")
}
func (noFleet) Stop(context.Context, string, string) error    { return nil }
func (noFleet) Tasks(context.Context) ([]fleet.Status, error) { return nil, nil }

func (noFleet) Traits(string) fleet.Traits {
	return fleet.Traits{Lists: true}
}

func (noFleet) Post(context.Context, string, []byte) error    { return storage.Closed }
func (noFleet) launch(storage.Box) (map[string]string, error) { return map[string]string{}, nil }

func configOf(t *testing.T, store storage.Store) relayserver.Config {
	t.Helper()
	return relayserver.Config{Store: store, Poster: noFleet{}, Fleet: noFleet{}, Sealer: sealerOf(t, 7), Launch: noFleet{}.launch}
}

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
		if _, err := store.PutItem(t.Context(), it); err != nil {
			t.Fatal(err)
		}
	}
	return store
}

func ended(t *testing.T, store storage.Store, stream storage.StreamID) (last storage.Index, final bool) {
	t.Helper()
	tail, err := store.Tail(t.Context(), "one", stream)
	commontest.OK(t, err)
	return tail.Last, tail.Final
}

func TestSweepEndsTheOtherRequestsOfABoxWhenOneCannotBeEnded(t *testing.T) {
	store := lostBoxes(t, storage.Item{Box: "t/s", ID: "a"}, storage.Item{Box: "t/s", ID: "b"})
	err := relayserver.NewSweeper(configOf(t, partlyDown{Store: store, stream: "a"})).Sweep(t.Context())
	if storage.CodeOf(err) != storage.Unavailable {
		t.Errorf("got %v, want unavailable", err)
	}
	if _, final := ended(t, store, "b"); !final {
		t.Error("the other request has no end")
	}
}

func TestSweepGoesOnAfterABoxThatCannotBeRead(t *testing.T) {
	store := lostBoxes(t, storage.Item{Box: "t/a", ID: "a"}, storage.Item{Box: "t/b", ID: "b"})
	err := relayserver.NewSweeper(configOf(t, partlyDown{Store: store, box: "t/a", stream: "none"})).Sweep(t.Context())
	if storage.CodeOf(err) != storage.Unavailable {
		t.Errorf("got %v, want unavailable", err)
	}
	if _, final := ended(t, store, "b"); !final {
		t.Error("the request of the other box has no end")
	}
}

func TestBatchWhoseLogIsGoneIsEndedAllTheSame(t *testing.T) {
	both := []json.RawMessage{json.RawMessage("1"), json.RawMessage("2")}
	store := lostBoxes(t, storage.Item{Box: "t/s", ID: "a", Address: storage.Address{Requests: both}})
	commontest.OK(t, store.Append(t.Context(), storage.Batch{
		Session: "one", Stream: "a", First: 1, Gen: 1, Seq: 1, Events: [][]byte{[]byte(`{}`)}, Expires: time.Now().Add(time.Hour),
	}))
	commontest.OK(t, relayserver.NewSweeper(configOf(t, partlyDown{Store: store, stream: "none", blank: true})).Sweep(t.Context()))
	if last, final := ended(t, store, "a"); last != 3 || !final {
		t.Errorf("the stream has %d events, its end: %v; want one event and two errors", last, final)
	}
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

// A program may end after it has taken the wake lease and before it has started the task.
// The sweep then starts the box again.
func TestSweepRepeatsAStartThatWasLostWithTheProgram(t *testing.T) {
	for name, c := range map[string]struct {
		since time.Duration // from the lease until the fleet began
		want  int
	}{"of an earlier run": {time.Second, 1}, "of this run": {-time.Second, 0}} {
		t.Run(name, func(t *testing.T) {
			leased := time.Now().Add(-time.Minute)
			store := storagetest.NewMemory()
			commontest.OK(t, store.SaveBox(t.Context(), storage.Box{
				ID: "b", Tenant: "t", Server: "s", Gen: 1, State: storage.Starting, Owner: "gone", Attempt: 1, Changed: leased, Until: leased.Add(3 * time.Minute),
			}))
			runners, config := &anyFleet{since: leased.Add(c.since)}, configOf(t, store)
			config.Fleet = runners
			sweeper := relayserver.NewSweeper(config)
			for range 2 {
				commontest.OK(t, sweeper.Sweep(t.Context()))
			}
			if runners.started != c.want {
				t.Errorf("%d tasks were run, want %d", runners.started, c.want)
			}
		})
	}
}
