package storagetest

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Harness has the functions with which the suite opens stores of one driver.
type Harness struct {
	// Open makes an empty store. The suite closes it. Open registers any other cleanup
	// with t.Cleanup.
	Open func(t *testing.T) storage.Store
	// Reopen opens another handle on the data of a store that Open made, as another process
	// would. When the other handle is closed, the first handle must still work. Reopen is nil
	// for a driver that keeps its data in the handle.
	Reopen func(t *testing.T, s storage.Store) storage.Store
	// Bounded opens an empty store that limits the events of a stream, or of a session, to 8. As
	// many as 16 may be left. Bounded is nil for a driver that does not limit events.
	Bounded func(t *testing.T) storage.Store
	// Polls means that Wait does not notice changes of items: it returns only for an event
	// or at its deadline.
	Polls bool
}

// Store tests a driver against the whole contract, each promise with a new store. Times have
// millisecond precision and are compared as instants. To test expiry, Store writes records that
// have expired already.
func Store(t *testing.T, h Harness) {
	groups := []struct {
		name     string
		promises []promise
	}{
		{"Sessions", sessionPromises()},
		{"Answers", answerPromises()},
		{"Connections", connectionPromises()},
		{"Keys", keyPromises()},
		{"Grants", grantPromises()},
		{"UpstreamTokens", upstreamTokenPromises()},
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

// promise is one sentence of the contract, and the test of it.
type promise struct {
	name  string
	check func(t *testing.T, k *kit)
}

// kit is what a check gets: an empty store, and the harness that opened it.
type kit struct {
	storage.Store
	harness Harness
}

// other returns another handle on the same data. If the driver has only one, it returns
// the same handle.
func (k *kit) other(t *testing.T) storage.Store {
	t.Helper()
	if k.harness.Reopen == nil {
		return k.Store
	}
	s := k.harness.Reopen(t, k.Store)
	t.Cleanup(func() { noError(t, "Close of the other handle", s.Close()) })
	return s
}

// now returns the present time with the precision that every driver keeps.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func future() time.Time { return now().Add(time.Hour) }
func past() time.Time   { return now().Add(-time.Hour) }

// patience is how long a check waits for an event that should come soon.
const patience = 10 * time.Second

func noError(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantCode(t *testing.T, what string, err error, code storage.Code) {
	t.Helper()
	if !errors.Is(err, code) || storage.CodeOf(err) != code {
		t.Fatalf("%s: error %v (code %q), want one with code %q", what, err, storage.CodeOf(err), code)
	}
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	// cmp would compare a message of a megabyte byte by byte, which takes half a minute.
	whole := cmp.FilterValues(func(x, y []byte) bool { return len(x)+len(y) > 0 }, cmp.Comparer(bytes.Equal))
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), whole); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

// filled fails if a field of a record is zero, apart from the fields in except. If a zero field
// were compared, nobody would notice that a driver does not store it.
func filled(t *testing.T, record any, except ...string) {
	t.Helper()
	v := reflect.ValueOf(record)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() && !slices.Contains(except, name) {
			t.Fatalf("the suite does not fill %s.%s", v.Type().Name(), name)
		}
	}
}
