package sessiontest

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Harness gives the suite stores of one driver.
type Harness struct {
	// Open makes a store without data. What it needs besides Close, it cleans up
	// with t.Cleanup.
	Open func(t *testing.T) session.Store
	// Reopen opens one more handle on the data of a store that Open made, with
	// the eyes of another process; closing it must leave the first one usable.
	// Nil for a driver that keeps its data in the handle.
	Reopen func(t *testing.T, s session.Store) session.Store
	// Bounded opens a store without data that keeps at most 8 events of a stream
	// or session, and looks whenever it should. Nil for a driver without bounds.
	Bounded func(t *testing.T) session.Store
	// Fill stores many new sessions as Create would, for a driver that can do it in
	// fewer round trips. Nil for one that has nothing quicker than Create.
	Fill func(t *testing.T, s session.Store, list []session.Session)
	// Polls says that a Wait does not notice items: nothing but an event, or its
	// time, ends it.
	Polls bool
}

// Store runs the whole contract against a driver, each promise on a store of its
// own. Times are given to the millisecond and compared as instants; a driver need
// not keep more. Nothing sleeps: what shall have expired is stored so.
func Store(t *testing.T, h Harness) {
	groups := []struct {
		name     string
		promises []promise
	}{
		{"Sessions", sessionPromises()},
		{"Answers", answerPromises()},
		{"Connections", connectionPromises()},
		{"Keys", keyPromises()},
		{"EntryTickets", entryTicketPromises()},
		{"Values", statePromises()},
		{"Append", appendPromises()},
		{"Read", readPromises()},
		{"Bounds", boundPromises(h)},
		{"Wait", waitPromises(h)},
		{"Boxes", boxPromises()},
		{"Items", itemPromises()},
		{"Parts", partPromises()},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, p := range g.promises {
				t.Run(p.name, func(t *testing.T) {
					s := h.Open(t)
					t.Cleanup(func() { noError(t, "Close", s.Close()) })
					p.check(t, &kit{Store: s, harness: h})
				})
			}
		})
	}
}

// promise is one sentence of the contract.
type promise struct {
	name  string
	check func(t *testing.T, k *kit)
}

// kit is what a check works with: an empty store.
type kit struct {
	session.Store
	harness Harness
}

// other is another handle on the same data, or the same one if the driver has no
// others.
func (k *kit) other(t *testing.T) session.Store {
	t.Helper()
	if k.harness.Reopen == nil {
		return k.Store
	}
	s := k.harness.Reopen(t, k.Store)
	t.Cleanup(func() { noError(t, "Close of the other handle", s.Close()) })
	return s
}

// now is the present as every driver can store it.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func future() time.Time { return now().Add(time.Hour) }
func past() time.Time   { return now().Add(-time.Hour) }

// patience is how long a check waits for what should come soon.
const patience = 10 * time.Second

func noError(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantCode(t *testing.T, what string, err error, code session.Code) {
	t.Helper()
	if !errors.Is(err, code) || session.CodeOf(err) != code {
		t.Fatalf("%s: error %v (code %q), want one with code %q", what, err, session.CodeOf(err), code)
	}
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	// Byte by byte, cmp takes half a minute for a message of a megabyte.
	whole := cmp.FilterValues(func(x, y []byte) bool { return len(x)+len(y) > 0 }, cmp.Comparer(bytes.Equal))
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), whole); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

// filled fails if a field of a record is zero, apart from some: a check that
// compares records would not see a driver that loses it.
func filled(t *testing.T, record any, except ...string) {
	t.Helper()
	v := reflect.ValueOf(record)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() && !slices.Contains(except, name) {
			t.Fatalf("the suite does not fill %s.%s", v.Type().Name(), name)
		}
	}
}
