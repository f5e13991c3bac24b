package relayserver_test

import (
	"context"
	"encoding/json"
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

// posts keeps what is posted to the connection of a box. So many posts fail first.
type posts struct {
	fail   int
	frames []frame.Frame
}

func (p *posts) Post(_ context.Context, _ string, data []byte) error {
	if p.fail > 0 {
		p.fail--
		return storage.Errorf(storage.Closed, "the connection is closed")
	}
	f, err := frame.Decode(data)
	p.frames = append(p.frames, f)
	return err
}

func TestAHaltReachesTheBoxOrEndsWhatWaitsForIt(t *testing.T) {
	for what, tt := range map[string]struct {
		state   storage.BoxState
		session storage.ID
		fail    int
		up      bool
		told    []frame.Frame
		code    storage.Code
		ended   [2]bool // the calls of the two sessions
		sleeps  bool
	}{
		"awake":                       {state: storage.Awake, session: "one", fail: 3, up: true, told: []frame.Frame{frame.Halt{Session: "one", By: "ada", In: 30_000}}},
		"awake, without a connection": {state: storage.Awake, fail: 1000, code: storage.Unavailable},
		"asleep":                      {state: storage.Asleep, sleeps: true},
		"starting":                    {state: storage.Starting, up: true, ended: [2]bool{true, true}, sleeps: true},
		"starting, one session":       {state: storage.Starting, session: "one", up: true, ended: [2]bool{true, false}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, p := storagetest.NewMemory(), &posts{fail: tt.fail}
				b := storage.Box{ID: "t/s", Tenant: "t", Server: "s", Gen: 1, State: tt.state, Conn: "c", Until: time.Now().Add(time.Minute)}
				commontest.OK(t, store.SaveBox(t.Context(), b))
				ids := []storage.ID{"one", "two"}
				for _, id := range ids {
					_, err := store.PutItem(t.Context(), storage.Item{
						Box: b.ID, ID: "call of " + storage.StreamID(id), State: storage.Waiting, Raw: []byte(`{}`), NotAfter: time.Now().Add(time.Minute),
						Address: storage.Address{Session: id, Stream: "call of " + storage.StreamID(id), Box: b.ID, Requests: []json.RawMessage{json.RawMessage("1")}},
					})
					commontest.OK(t, err)
				}
				c := configOf(t, store)
				c.Poster = p
				up, err := relayserver.NewBackend(c).Halt(t.Context(), b.ID, relayserver.Halt{Session: tt.session, By: "ada", Within: 30 * time.Second})
				commontest.EqualIn(t, "error", tt.code, storage.CodeOf(err))
				commontest.EqualIn(t, "up", tt.up, up)
				commontest.SameIn(t, "the runner was told", tt.told, p.frames)
				for i, id := range ids {
					page, err := store.Read(t.Context(), id, "call of "+storage.StreamID(id), 0, 10)
					commontest.OK(t, err)
					if ended := len(page.Events) == 1 && strings.Contains(string(page.Events[0].Raw), "stopped by ada"); ended != tt.ended[i] {
						t.Errorf("the call of %s ended %t: %v", id, ended, page.Events)
					}
				}
				b, err = store.Box(t.Context(), b.ID)
				commontest.OK(t, err)
				commontest.EqualIn(t, "the box sleeps", tt.sleeps, b.State == storage.Asleep)
			})
		})
	}
}
