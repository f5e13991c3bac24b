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
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

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

func TestATenantHasNoMoreBoxesThanItMay(t *testing.T) {
	for what, c := range map[string]struct {
		quota int
		box   storage.BoxID
		code  storage.Code
	}{
		"room":           {3, "t/new", ""},
		"full":           {2, "t/new", storage.Busy},
		"over":           {1, "t/down", storage.Busy},
		"another tenant": {2, "t/x/new", ""},
	} {
		t.Run(what, func(t *testing.T) {
			store := manyBoxes(t, map[string]storage.BoxState{"up": storage.Awake, "coming": storage.Starting, "down": storage.Asleep})
			// A box that sleeps over its inbox counts for nothing.
			_, err := store.PutItem(t.Context(), storage.Item{Box: "t/down", ID: "x", State: storage.Waiting})
			commontest.OK(t, err)
			f, config := &asylum{}, configOf(t, store)
			config.Fleet, config.BoxesOf = f, func(context.Context, string) int { return c.quota }
			_, err = relayserver.NewBackend(config).Deliver(t.Context(), callOf(c.box.Parts()), storage.Box{ID: c.box})
			commontest.EqualIn(t, "error", c.code, storage.CodeOf(err))
			commontest.EqualIn(t, "started", c.code == "", f.starts == 1)
			_, none := store.Item(t.Context(), c.box, "a")
			commontest.EqualIn(t, "waits", c.code == "", none == nil)
			if limited, ok := errors.AsType[*storage.Limited](err); c.code != "" && (!ok || *limited != storage.Limited{Kind: "room", Scope: "tenant", After: time.Second}) {
				t.Errorf("the limit is %+v", limited)
			}
		})
	}
}

// A runner that has never sent hello has executed nothing. The waiting clients learn
// this, and why the runner ended.
func TestABoxThatDoesNotStartIsToldAsSuch(t *testing.T) {
	for phase, end := range map[string]fleet.Status{
		"relay_connect":   {ExitCode: frame.ExitUnreachable},
		"box_unavailable": {ExitCode: 1, Reason: "open /x: permission denied"},
	} {
		a := newAsylum(t)
		a.stale(func(b *storage.Box) { b.Attempt = 2 })
		a.waits()
		end.ID, end.Box, end.ClientToken = "task", string(asylumBox), relayserver.ClientToken(asylumBox, asylumGen)
		commontest.OK(t, relayserver.NewSweeper(a.config).Stopped(t.Context(), end))
		told, _ := wire.String(wire.Lookup(a.end().Error, "data", "phase"))
		commontest.EqualIn(t, "phase", phase, told)
		commontest.Contains(t, "the end", end.Reason, string(a.end().Raw))
	}
}

func TestNoMoreRequestsWaitForABoxThanMay(t *testing.T) {
	for what, c := range map[string]struct {
		state   storage.BoxState
		waiting int
		most    int
		code    storage.Code
	}{
		"the last that may, asleep":      {storage.Asleep, 1, 2, ""},
		"one more, asleep":               {storage.Asleep, 2, 2, storage.Busy},
		"one more, starting":             {storage.Starting, 2, 2, storage.Busy},
		"an awake box is not waited for": {storage.Awake, 2, 2, ""},
	} {
		t.Run(what, func(t *testing.T) {
			store := manyBoxes(t, map[string]storage.BoxState{"s": c.state})
			for i := range c.waiting {
				_, err := store.PutItem(t.Context(), storage.Item{Box: "t/s", ID: storage.StreamID(rune('k' + i)), State: storage.Waiting})
				commontest.OK(t, err)
			}
			// An item that was taken does not wait any more.
			_, err := store.PutItem(t.Context(), storage.Item{Box: "t/s", ID: "taken", State: storage.Taken, Gen: 1})
			commontest.OK(t, err)
			config := configOf(t, store)
			config.Fleet, config.Poster, config.WaitingCalls = &asylum{}, &asylum{}, c.most
			_, err = relayserver.NewBackend(config).Deliver(t.Context(), callOf("t", "s"), storage.Box{ID: "t/s", State: c.state})
			commontest.EqualIn(t, "error", c.code, storage.CodeOf(err))
			_, none := store.Item(t.Context(), "t/s", "a")
			commontest.EqualIn(t, "waits", c.code == "" && c.state != storage.Awake, none == nil)
		})
	}
}
