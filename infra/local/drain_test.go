package local

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// Ctrl-C waits for calls that have no box, and no longer than boxes wait for theirs.
func TestCallsWithoutABoxGetFiveSeconds(t *testing.T) {
	for takes, want := range map[time.Duration]time.Duration{0: 0, 3 * time.Second: 3 * time.Second, time.Hour: runner.DrainTime} {
		synctest.Test(t, func(t *testing.T) {
			m := &machine{public: &listeners{}}
			m.lines = journal.NewLines(m.recorder, journal.Options{})
			if takes > 0 {
				m.public.use.add(true, 1)
				time.AfterFunc(takes, func() { m.public.use.add(true, -1) })
			}
			begun := time.Now()
			awaitCalls(t.Context(), m, begun.Add(runner.DrainTime))
			if took := time.Since(begun); took < want || took > want+time.Second {
				t.Errorf("a call of %s got %s, want %s", takes, took, want)
			}
		})
	}
}

// What ends only with its connection does not hold up a drain.
func TestListenersAreNoCallsInFlight(t *testing.T) {
	var u use
	calls := -1
	s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls = u.calls() })} //nolint:gosec // it never serves
	u.count(s, &openConnections{})
	for want, r := range map[int]*http.Request{
		0: httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/one/mcp", nil),
		1: httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/one/mcp", nil),
	} {
		r.Header.Set(wire.HeaderMethod, []string{wire.MethodListen, wire.MethodToolsCall}[want])
		if s.Handler.ServeHTTP(nil, r); calls != want {
			t.Errorf("%s: %d calls, want %d", r.Header.Get(wire.HeaderMethod), calls, want)
		}
	}
}

// An older server in a box keeps its question to a client of 2026-07-28 until its box ends. If the client
// never comes back, nothing reports the end of the call, and no stop may wait for it.
func TestACallInABoxIsInFlightOnlyAsLongAsItsBox(t *testing.T) {
	servers, _, err := serversfile.Parse([]byte(`{"mcpServers":{"boxed":{"command":"x"},"native":{"x-dormouse":{"native":"x"}}}}`), "servers.json", nil)
	commontest.OK(t, err)
	for server, want := range map[string]bool{"boxed": false, "native": true} {
		m, _ := idleMachine(t, 0)
		m.servers.Store(servers)
		m.lines = journal.NewLines(m.recorder, journal.Options{Hide: strings.Clone, Lists: func(_, _, _ string) bool { return true }})
		m.lines.Observe(&observe.Event{Kind: observe.Request, Tool: "t", Outcome: observe.Open, Stream: "1", Account: storage.Account{Server: server}})
		commontest.EqualIn(t, server, want, inFlight(t.Context(), m))
	}
}

// haltable is a machine with one box, whose runner never ends.
type haltable struct {
	*stub
	halt func(frame.Halt) (up bool, err error)
}

func (h *haltable) Boxes() []fleet.Status {
	return []fleet.Status{{ID: "task", Box: "local/one", State: fleet.Running}}
}

func (h *haltable) Operators() api.Options {
	return api.Options{Acts: api.Acts{Halt: func(_ context.Context, _ storage.BoxID, f frame.Halt) (bool, error) { return h.halt(f) }}}
}

// A process that started when its box had just been told to end does not know that. The runner of
// a box that is asleep stays connected for 5 s, and no stop waits for it.
func TestBoxesAreToldToEndUntilTheyAreAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := idleMachine(t, 0)
		box := storage.Box{ID: "local/one", Tenant: "local", Server: "one", Gen: 1, State: storage.Awake}
		commontest.OK(t, f.store.SaveBox(t.Context(), box))
		halts := 0
		m.functions = &haltable{f, func(h frame.Halt) (bool, error) {
			commontest.EqualIn(t, "no client is connected", halts == 1, h.Alone)
			m.public.use.add(false, -1)
			if halts++; halts == 2 {
				box.Rev, box.State = 1, storage.Asleep
				commontest.Check(t, f.store.SaveBox(t.Context(), box))
			}
			return true, nil
		}}
		m.public.use.add(false, 1)
		told, begun := map[string]time.Time{}, time.Now()
		for haltBoxes(t.Context(), m, told) && time.Since(begun) < drainWithin {
			time.Sleep(100 * time.Millisecond)
		}
		commontest.EqualIn(t, "the wait", tellAgain+100*time.Millisecond, time.Since(begun))
	})
}
