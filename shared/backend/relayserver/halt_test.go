package relayserver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestAHaltReachesTheBoxOrEndsWhatWaitsForIt(t *testing.T) {
	for what, tt := range map[string]struct {
		state   storage.BoxState
		session storage.ID
		lost    int
		up      bool
		told    int
		code    storage.Code
		ended   [2]bool // the calls of the two sessions
		sleeps  bool
	}{
		"awake":                       {state: storage.Awake, session: "s1", lost: 3, up: true, told: 1},
		"awake, without a connection": {state: storage.Awake, lost: 1000, code: storage.Unavailable},
		"asleep":                      {state: storage.Asleep, sleeps: true},
		"starting":                    {state: storage.Starting, up: true, ended: [2]bool{true, true}, sleeps: true},
		"starting, one session":       {state: storage.Starting, session: "s1", up: true, ended: [2]bool{true, false}},
	} {
		t.Run(what, timed(func(t *testing.T, a *asylum) {
			a.lost = tt.lost
			a.changes(func(b *storage.Box) { b.State, b.Until = tt.state, time.Now().Add(time.Minute) })
			sessions, streams := [2]storage.ID{"s1", "s2"}, [2]storage.StreamID{}
			for i, id := range sessions {
				a.stream = storage.NewStreamID()
				streams[i] = a.stream
				a.waitsIn(id)
			}
			up, err := a.backend().Halt(t.Context(), asylumBox, frame.Halt{Session: tt.session, By: "ada", In: 30_000})
			commontest.EqualIn(t, "error", tt.code, storage.CodeOf(err))
			commontest.EqualIn(t, "up", tt.up, up)
			told := a.posted(frame.TypeHalt)
			if len(told) != tt.told || tt.told > 0 && (told[0].Session != tt.session || told[0].By != "ada" || told[0].In != 30_000) {
				t.Errorf("the runner was told %+v", told)
			}
			for i, id := range sessions {
				page, err := a.store.Read(t.Context(), id, streams[i], 0, 10)
				commontest.OK(t, err)
				ended := len(page.Events) == 1 && strings.Contains(string(page.Events[0].Raw), "stopped by ada")
				commontest.EqualIn(t, "ended is the call of "+string(id), tt.ended[i], ended)
			}
			commontest.EqualIn(t, "the box sleeps", tt.sleeps, a.box().State == storage.Asleep)
		}))
	}
}
