package sessions_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// keepAlive is how often an endpoint calls Next while no events come.
const keepAlive = 15 * time.Second

func open(t *testing.T, h *sessions.Manager, id storage.ID, last string) *sessions.Call {
	t.Helper()
	call, err := h.Listen(t.Context(), someone, id, last)
	commontest.OK(t, err)
	next(t, call, 0)
	return call
}

func next(t *testing.T, call *sessions.Call, within time.Duration) (got string) {
	t.Helper()
	events, err := call.Next(t.Context(), time.Now().Add(within))
	commontest.OK(t, err)
	for _, e := range events {
		got += string(e.Raw)
	}
	return got
}

func record(t *testing.T, store storage.Store, id storage.ID) storage.Session {
	t.Helper()
	s, _, err := store.Load(t.Context(), id, "")
	commontest.OK(t, err)
	return s
}

func change(t *testing.T, store storage.Store, id storage.ID, f func(*storage.Session)) {
	t.Helper()
	s := record(t, store, id)
	f(&s)
	commontest.OK(t, store.Save(t.Context(), s))
}

func TestAStandbyLeavesItsPlaceWhenItComesBackAndWhenItIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store, id := listening(t)
		h := sessions.New(store, nobody{}, sessions.Limits{Hold: time.Hour})
		open(t, h, id, "")
		one := open(t, h, id, "")
		for range 5 {
			one = open(t, h, id, one.Cursor().String())
		}
		commontest.SameIn(t, "places of one client", 1, len(record(t, store, id).Standby))
		change(t, store, id, func(s *storage.Session) { s.Standby[0].Until = time.Now().Add(-time.Second) })
		open(t, h, id, "")
		commontest.SameIn(t, "places after one has expired", 1, len(record(t, store, id).Standby))
	})
}

func TestAClientThatComesBackKeepsItsPlaceBeforeAStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store, id := listening(t)
		h := sessions.New(store, nobody{}, sessions.Limits{Hold: time.Hour})
		first := open(t, h, id, "")
		connection, cut := context.WithCancel(t.Context())
		cut()
		if _, err := first.Next(connection, time.Now().Add(time.Hour)); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		standby := open(t, h, id, "")
		time.Sleep(time.Second)
		back := open(t, h, id, first.Cursor().String())
		push(t, store, id, 4, "4")
		commontest.SameIn(t, "what the client gets", "4", next(t, back, time.Minute))
		commontest.SameIn(t, "what the standby gets", "", next(t, standby, time.Minute))
	})
}

func TestAListenerOfASessionThatHasEndedIsDoneAtItsNextLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store, id := listening(t)
		h := sessions.New(store, nobody{}, sessions.Limits{Hold: time.Hour})
		primary, standby := open(t, h, id, ""), open(t, h, id, "")
		time.Sleep(time.Second)
		commontest.OK(t, h.End(t.Context(), someone, id))
		for who, call := range map[string]*sessions.Call{"primary": primary, "standby": standby} {
			next(t, call, keepAlive)
			if _, closed := call.Close(); !call.Done() || closed {
				t.Errorf("%s: done %t, closed %t; want the end and nothing to come back for", who, call.Done(), closed)
			}
		}
	})
}

// The program that held a listener's place was killed, and said nothing. The one that was started after
// it gives the place to the next listener, however long the other one could have held it.
func TestAPlaceOfAnEarlierRunIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store, id := listening(t)
		killed := sessions.New(store, nobody{}, sessions.Limits{Hold: 24 * time.Hour})
		open(t, killed, id, "")
		time.Sleep(time.Second)
		anew := sessions.New(store, nobody{}, sessions.Limits{Hold: 24 * time.Hour, Since: time.Now()})
		call, err := anew.Listen(t.Context(), someone, id, "")
		commontest.OK(t, err)
		commontest.SameIn(t, "what the next one gets at once", "123", next(t, call, 0))
		commontest.SameIn(t, "what another one gets: a place of this run is kept", "", next(t, open(t, anew, id, ""), time.Minute))
	})
}

func TestOfTooManyStandbysTheOldestIsSentAwayForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store, id := listening(t)
		h := sessions.New(store, nobody{}, sessions.Limits{Hold: time.Hour})
		var calls []*sessions.Call
		for range 35 { // a primary, 32 standbys, 2 too many
			calls = append(calls, open(t, h, id, ""))
			time.Sleep(time.Second)
		}
		commontest.SameIn(t, "places", 32, len(record(t, store, id).Standby))
		for i, call := range calls {
			next(t, call, keepAlive)
			retry, closed := call.Close()
			want := i == 1 || i == 2
			if closed != want || call.Done() != want || want && (retry != time.Minute || call.Retry() != time.Minute) {
				t.Errorf("GET %d: done %t, closed %t, retry %s", i, call.Done(), closed, retry)
			}
		}
	})
}
