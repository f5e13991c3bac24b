package relayserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// posts keeps what is posted to connections. Posts to a connection in closed fail.
type posts struct {
	closed map[string]int // how many posts fail
	frames map[string][]frame.Frame
}

func (p *posts) Post(_ context.Context, conn string, data []byte) error {
	if p.closed[conn] > 0 {
		p.closed[conn]--
		return storage.Errorf(storage.Closed, "the connection is closed")
	}
	f, err := frame.Decode(data)
	p.frames[conn] = append(p.frames[conn], f)
	return err
}

// halts halts a box in some state, with a call of session "one" and one of "two" waiting
// for it.
func halts(t *testing.T, state storage.BoxState, p *posts, h relayserver.Halt) (up bool, store *storagetest.Memory, err error) {
	t.Helper()
	store = storagetest.NewMemory()
	const id = storage.BoxID("t/s")
	b := storage.Box{ID: id, Tenant: "t", Server: "s", Gen: 1, State: state, Conn: "c", Until: time.Now().Add(time.Minute)}
	commontest.OK(t, store.SaveBox(t.Context(), b))
	for _, of := range []string{"one", "two"} {
		_, err := store.PutItem(t.Context(), storage.Item{
			Box: id, ID: storage.StreamID("call of " + of), State: storage.Waiting, Raw: []byte(`{}`), NotAfter: time.Now().Add(time.Minute),
			Address: storage.Address{Session: storage.ID(of), Stream: storage.StreamID("call of " + of), Box: id, Requests: []json.RawMessage{json.RawMessage("1")}},
		})
		commontest.OK(t, err)
	}
	c := configOf(t, store)
	c.Poster = p
	up, err = relayserver.NewBackend(c).Halt(t.Context(), id, h)
	return up, store, err
}

// endOf returns the last event of a call.
func endOf(t *testing.T, store storage.Store, of string) string {
	t.Helper()
	page, err := store.Read(t.Context(), storage.ID(of), storage.StreamID("call of "+of), 0, 10)
	commontest.OK(t, err)
	if len(page.Events) == 0 {
		return ""
	}
	return string(page.Events[len(page.Events)-1].Raw)
}

func TestHaltTellsTheRunnerOfABoxThatIsAwake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &posts{closed: map[string]int{"c": 3}, frames: map[string][]frame.Frame{}}
		up, store, err := halts(t, storage.Awake, p, relayserver.Halt{Session: "one", By: "ada", Within: 30 * time.Second})
		if err != nil || !up {
			t.Fatalf("up %t, %v", up, err)
		}
		if f := p.frames["c"]; len(f) != 1 || f[0] != (frame.Halt{Session: "one", By: "ada", In: 30_000}) {
			t.Errorf("the runner was told %+v", f)
		}
		if end := endOf(t, store, "one"); end != "" {
			t.Errorf("the call ended with %s", end)
		}
	})
}

func TestHaltOfABoxWithoutAConnectionIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &posts{closed: map[string]int{"c": 1000}, frames: map[string][]frame.Frame{}}
		up, _, err := halts(t, storage.Awake, p, relayserver.Halt{By: "ada"})
		if up || !errors.Is(err, storage.Unavailable) || !strings.Contains(err.Error(), "try again") {
			t.Errorf("up %t, %v", up, err)
		}
	})
}

func TestHaltOfABoxThatSleepsDoesNothing(t *testing.T) {
	p := &posts{frames: map[string][]frame.Frame{}}
	up, _, err := halts(t, storage.Asleep, p, relayserver.Halt{By: "ada"})
	if up || err != nil || len(p.frames) > 0 {
		t.Errorf("up %t, %v, posted %v", up, err, p.frames)
	}
}

func TestHaltOfABoxThatStartsEndsTheCallsThatWait(t *testing.T) {
	for halted, ends := range map[storage.ID][2]bool{"": {true, true}, "one": {true, false}} {
		p := &posts{frames: map[string][]frame.Frame{}}
		up, store, err := halts(t, storage.Starting, p, relayserver.Halt{Session: halted, By: "ada"})
		if err != nil || !up {
			t.Fatalf("up %t, %v", up, err)
		}
		for i, of := range []string{"one", "two"} {
			if end := endOf(t, store, of); strings.Contains(end, "stopped by ada") != ends[i] {
				t.Errorf("halt of %q: the call of %s ended with %q", halted, of, end)
			}
		}
		b, err := store.Box(t.Context(), "t/s")
		if err != nil || (b.State == storage.Asleep) != (halted == "") {
			t.Errorf("halt of %q: the box is %q, %v", halted, b.State, err)
		}
	}
}
