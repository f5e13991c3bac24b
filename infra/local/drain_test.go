package local

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
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
	s := &http.Server{ConnState: nil, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls = u.calls() })} //nolint:gosec // it never serves
	u.count(s)
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
