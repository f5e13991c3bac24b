package relayserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// anyFleet starts every task and counts them.
type anyFleet struct {
	noFleet
	started int
	since   time.Time
}

func (f *anyFleet) Traits(string) fleet.Traits { return fleet.Traits{Lists: true, Since: f.since} }

func (f *anyFleet) Run(context.Context, fleet.Task) (string, error) {
	f.started++
	return "task", nil
}

// manyBoxes is a store with boxes of tenant "t" in some states.
func manyBoxes(t *testing.T, states map[string]storage.BoxState) *storagetest.Memory {
	t.Helper()
	store := storagetest.NewMemory()
	for server, state := range states {
		commontest.OK(t, store.SaveBox(t.Context(), storage.Box{ID: storage.BoxFor("t", server), Tenant: "t", Server: server, Gen: 1, State: state}))
	}
	return store
}

// callOf returns a delivery of one request, on stream "a" of session "one".
func callOf(tenant, server string) sessions.Delivery {
	return sessions.Delivery{
		Address: storage.Address{Session: "one", Stream: "a", Box: storage.BoxFor(tenant, server), Requests: []json.RawMessage{json.RawMessage("1")}},
		Client:  storage.Session{ID: "one", Tenant: tenant, Server: server}, Server: server, Raw: []byte(`{}`),
	}
}

// wakes delivers a request for a box that is asleep.
func wakes(t *testing.T, store storage.Store, quota int, tenant, server string) (started int, err error) {
	t.Helper()
	f := &anyFleet{}
	c := configOf(t, store)
	c.Fleet, c.BoxesOf = f, func(context.Context, string) int { return quota }
	_, err = relayserver.NewBackend(c).Deliver(t.Context(), callOf(tenant, server), storage.Box{ID: storage.BoxFor(tenant, server)})
	return f.started, err
}

func TestATenantHasNoMoreBoxesThanItMay(t *testing.T) {
	two := map[string]storage.BoxState{"up": storage.Awake, "coming": storage.Starting, "down": storage.Asleep}
	for what, c := range map[string]struct {
		quota          int
		tenant, server string
		ok             bool
	}{
		"no quota":       {0, "t", "new", true},
		"room":           {3, "t", "new", true},
		"full":           {2, "t", "new", false},
		"over":           {1, "t", "down", false},
		"another tenant": {2, "t/x", "new", true},
	} {
		t.Run(what, func(t *testing.T) {
			store := manyBoxes(t, two)
			started, err := wakes(t, store, c.quota, c.tenant, c.server)
			if c.ok {
				if err != nil || started != 1 {
					t.Errorf("%s: %d started, %v", what, started, err)
				}
				return
			}
			items, failed := store.Items(t.Context(), storage.BoxFor(c.tenant, c.server))
			b, also := store.Box(t.Context(), storage.BoxFor(c.tenant, c.server))
			if !errors.Is(err, storage.Busy) || started != 0 || len(items) > 0 || b.State != storage.Asleep || failed != nil || also != nil {
				t.Errorf("%s: %v, %d started, items %v, box %+v", what, err, started, items, b)
			}
		})
	}
}

func TestABoxThatSleepsOverItsInboxCountsForNothing(t *testing.T) {
	store := manyBoxes(t, map[string]storage.BoxState{"up": storage.Awake, "down": storage.Asleep})
	if _, err := store.PutItem(t.Context(), storage.Item{Box: "t/down", ID: "x", State: storage.Waiting}); err != nil {
		t.Fatal(err)
	}
	if started, err := wakes(t, store, 2, "t", "new"); err != nil || started != 1 {
		t.Errorf("%d started, %v", started, err)
	}
}

// A runner that has never sent hello has executed nothing. The waiting clients learn
// this, and why the runner ended.
func TestABoxThatDoesNotStartIsToldAsSuch(t *testing.T) {
	for phase, c := range map[string]struct {
		end  fleet.Status
		want string
	}{
		"relay_connect": {fleet.Status{ExitCode: frame.ExitUnreachable}, "nothing was executed"},
		"box_unavailable": {
			fleet.Status{ExitCode: 1, Reason: "the runner exited with code 1: open /x: permission denied"},
			"the box could not start (the runner exited with code 1: open /x: permission denied); nothing was executed",
		},
	} {
		t.Run(phase, func(t *testing.T) {
			store := storagetest.NewMemory()
			commontest.OK(t, store.SaveBox(t.Context(), storage.Box{ID: "t/s", Tenant: "t", Server: "s", Gen: 1, State: storage.Starting, Attempt: 2}))
			a := storage.Address{Session: "one", Stream: "a", Box: "t/s", Requests: []json.RawMessage{json.RawMessage("1")}}
			if _, err := store.PutItem(t.Context(), storage.Item{Box: "t/s", ID: "a", State: storage.Waiting, Address: a, Raw: []byte(`{}`)}); err != nil {
				t.Fatal(err)
			}
			c.end.ID, c.end.Box, c.end.ClientToken = "task", "t/s", relayserver.ClientToken("t/s", 1)
			commontest.OK(t, relayserver.NewSweeper(configOf(t, store)).Stopped(t.Context(), c.end))
			page, err := store.Read(t.Context(), "one", "a", 0, 10)
			if err != nil || len(page.Events) != 1 {
				t.Fatalf("%+v, %v", page, err)
			}
			var e struct {
				Error struct {
					Message string
					Data    struct{ Phase string }
				}
			}
			if err := json.Unmarshal(page.Events[0].Raw, &e); err != nil || e.Error.Data.Phase != phase || !strings.Contains(e.Error.Message, c.want) {
				t.Errorf("whoever waits is told %s (%v)", page.Events[0].Raw, err)
			}
		})
	}
}

func TestNoMoreRequestsWaitForABoxThanMay(t *testing.T) {
	for what, c := range map[string]struct {
		state   storage.BoxState
		waiting int
		most    int
		refused bool
	}{
		"the last that may, asleep":      {storage.Asleep, 1, 2, false},
		"one more, asleep":               {storage.Asleep, 2, 2, true},
		"the last that may, starting":    {storage.Starting, 1, 2, false},
		"one more, starting":             {storage.Starting, 2, 2, true},
		"an awake box is not waited for": {storage.Awake, 2, 2, false},
		"any number":                     {storage.Starting, 2, 0, false},
	} {
		t.Run(what, func(t *testing.T) {
			store := manyBoxes(t, map[string]storage.BoxState{"s": c.state})
			for i := range c.waiting {
				if _, err := store.PutItem(t.Context(), storage.Item{Box: "t/s", ID: storage.StreamID(rune('k' + i)), State: storage.Waiting}); err != nil {
					t.Fatal(err)
				}
			}
			// An item that was taken does not wait any more.
			if _, err := store.PutItem(t.Context(), storage.Item{Box: "t/s", ID: "taken", State: storage.Taken, Gen: 1}); err != nil {
				t.Fatal(err)
			}
			config := configOf(t, store)
			config.Fleet, config.WaitingCalls = &anyFleet{}, c.most
			config.Poster = &posts{frames: map[string][]frame.Frame{}}
			_, err := relayserver.NewBackend(config).Deliver(t.Context(), callOf("t", "s"), storage.Box{ID: "t/s", State: c.state})
			_, trace := store.Item(t.Context(), "t/s", "a")
			if c.refused && (!errors.Is(err, storage.Busy) || trace == nil) || !c.refused && err != nil {
				t.Errorf("%s: %v, item %v", what, err, trace)
			}
		})
	}
}
