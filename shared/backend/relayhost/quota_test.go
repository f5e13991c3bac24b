package relayhost_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayhost"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/mcp/host"
	"github.com/dormouse-mcp/dormouse/shared/store/sessiontest"
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
func manyBoxes(t *testing.T, states map[string]session.BoxState) *sessiontest.Memory {
	t.Helper()
	store := sessiontest.NewMemory()
	for server, state := range states {
		if err := store.SaveBox(t.Context(), session.Box{ID: session.BoxFor("t", server), Tenant: "t", Server: server, Gen: 1, State: state}); err != nil {
			t.Fatal(err)
		}
	}
	return store
}

// callOf returns a delivery of one request, on stream "a" of session "one".
func callOf(tenant, server string) host.Delivery {
	return host.Delivery{
		Address: session.Address{Session: "one", Stream: "a", Box: session.BoxFor(tenant, server), Requests: []json.RawMessage{json.RawMessage("1")}},
		Client:  session.Session{ID: "one", Tenant: tenant, Server: server}, Server: server, Raw: []byte(`{}`),
	}
}

// wakes delivers a request for a box that is asleep.
func wakes(t *testing.T, store session.Store, quota int, tenant, server string) (started int, err error) {
	t.Helper()
	f := &anyFleet{}
	c := configOf(t, store)
	c.Fleet, c.BoxesOf = f, func(context.Context, string) int { return quota }
	_, err = relayhost.NewBackend(c).Deliver(t.Context(), callOf(tenant, server), session.Box{ID: session.BoxFor(tenant, server)})
	return f.started, err
}

func TestATenantHasNoMoreBoxesThanItMay(t *testing.T) {
	two := map[string]session.BoxState{"up": session.Awake, "coming": session.Starting, "down": session.Asleep}
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
		store := manyBoxes(t, two)
		started, err := wakes(t, store, c.quota, c.tenant, c.server)
		if c.ok {
			if err != nil || started != 1 {
				t.Errorf("%s: %d started, %v", what, started, err)
			}
			continue
		}
		items, failed := store.Items(t.Context(), session.BoxFor(c.tenant, c.server))
		b, also := store.Box(t.Context(), session.BoxFor(c.tenant, c.server))
		if !errors.Is(err, session.Busy) || started != 0 || len(items) > 0 || b.State != session.Asleep || failed != nil || also != nil {
			t.Errorf("%s: %v, %d started, items %v, box %+v", what, err, started, items, b)
		}
	}
}

func TestABoxThatSleepsOverItsInboxCountsForNothing(t *testing.T) {
	store := manyBoxes(t, map[string]session.BoxState{"up": session.Awake, "down": session.Asleep})
	if _, err := store.PutItem(t.Context(), session.Item{Box: "t/down", ID: "x", State: session.Waiting}); err != nil {
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
		store := sessiontest.NewMemory()
		if err := store.SaveBox(t.Context(), session.Box{ID: "t/s", Tenant: "t", Server: "s", Gen: 1, State: session.Starting, Attempt: 2}); err != nil {
			t.Fatal(err)
		}
		a := session.Address{Session: "one", Stream: "a", Box: "t/s", Requests: []json.RawMessage{json.RawMessage("1")}}
		if _, err := store.PutItem(t.Context(), session.Item{Box: "t/s", ID: "a", State: session.Waiting, Address: a, Raw: []byte(`{}`)}); err != nil {
			t.Fatal(err)
		}
		c.end.ID, c.end.Box, c.end.ClientToken = "task", "t/s", relayhost.ClientToken("t/s", 1)
		if err := relayhost.NewSweeper(configOf(t, store)).Stopped(t.Context(), c.end); err != nil {
			t.Fatal(err)
		}
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
	}
}

func TestNoMoreRequestsWaitForABoxThanMay(t *testing.T) {
	for what, c := range map[string]struct {
		state   session.BoxState
		waiting int
		most    int
		refused bool
	}{
		"the last that may, asleep":      {session.Asleep, 1, 2, false},
		"one more, asleep":               {session.Asleep, 2, 2, true},
		"the last that may, starting":    {session.Starting, 1, 2, false},
		"one more, starting":             {session.Starting, 2, 2, true},
		"an awake box is not waited for": {session.Awake, 2, 2, false},
		"any number":                     {session.Starting, 2, 0, false},
	} {
		store := manyBoxes(t, map[string]session.BoxState{"s": c.state})
		for i := range c.waiting {
			if _, err := store.PutItem(t.Context(), session.Item{Box: "t/s", ID: session.StreamID(rune('k' + i)), State: session.Waiting}); err != nil {
				t.Fatal(err)
			}
		}
		// An item that was taken does not wait any more.
		if _, err := store.PutItem(t.Context(), session.Item{Box: "t/s", ID: "taken", State: session.Taken, Gen: 1}); err != nil {
			t.Fatal(err)
		}
		config := configOf(t, store)
		config.Fleet, config.WaitingCalls = &anyFleet{}, c.most
		config.Poster = &posts{frames: map[string][]frame.Frame{}}
		_, err := relayhost.NewBackend(config).Deliver(t.Context(), callOf("t", "s"), session.Box{ID: "t/s", State: c.state})
		_, trace := store.Item(t.Context(), "t/s", "a")
		if c.refused && (!errors.Is(err, session.Busy) || trace == nil) || !c.refused && err != nil {
			t.Errorf("%s: %v, item %v", what, err, trace)
		}
	}
}
