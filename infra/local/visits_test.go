package local

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// passed returns how many of n requests from an address got through.
func passed(t *testing.T, h http.Handler, from string, n int) (passed int) {
	t.Helper()
	for range n {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/register", nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		switch {
		case w.Code == http.StatusNoContent:
			passed++
		case w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1":
			t.Fatalf("%d %v", w.Code, w.Header())
		}
	}
	return passed
}

func TestAnAddressMayAskForThePagesOfSignInTenTimesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newVisits().limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }), func(*http.Request, int, string, error) {})
		commontest.EqualIn(t, "requests at once", visitsBurst, passed(t, h, "192.0.2.1:1", 1000))
		time.Sleep(3 * time.Second)
		commontest.EqualIn(t, "requests after three seconds", 3*visitsPerSecond, passed(t, h, "192.0.2.1:2", 1000))
		commontest.EqualIn(t, "requests got through in the other form of the address", 0, passed(t, h, "[::ffff:192.0.2.1]:3", 10))
		time.Sleep(visitsBurst / visitsPerSecond * time.Second) // the network may share the limiter of the address
		var network int
		for i := range 1000 {
			network += passed(t, h, fmt.Sprintf("[2001:db8::%x]:1", i+1), 1)
		}
		commontest.EqualIn(t, "requests from one network", visitsBurst, network)
		// All callers behind a proxy on this machine come from loopback, and share one limit.
		here := 0
		for _, from := range []string{"127.0.0.1:9", "[::1]:9", "[::ffff:127.0.0.1]:9", "@"} {
			here += passed(t, h, from, 1000)
		}
		commontest.EqualIn(t, "requests from this machine", visitsBurstHere, here)
		time.Sleep(time.Second)
		commontest.EqualIn(t, "requests from this machine after a second", visitsPerSecondHere, passed(t, h, "127.0.0.2:9", 1000))
		// An address seldom shares the limiter of another one, because limiters are found
		// by a hash.
		others := 0
		for i := range 20 {
			others += passed(t, h, fmt.Sprintf("198.51.100.%d:1", i), visitsBurst)
		}
		if others < 15*visitsBurst {
			t.Errorf("other addresses got %d of %d requests through", others, 20*visitsBurst)
		}
	})
}

// What is refused before a handler sees it names its caller's address, as other refusals do.
func TestRefusalsOfTheMachineNameTheirCaller(t *testing.T) {
	var told, log bytes.Buffer
	m := started(t, func(c *Config) { c.JSON, c.Log = &told, &log })
	in, ok := m.functions.(*inprocess)
	if !ok {
		t.Fatal("the functions are not in this process")
	}
	h := in.visits.limit(http.NotFoundHandler(), in.refused)
	for range visitsBurst + 1 {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/register", nil)
		r.RemoteAddr = "192.0.2.7:1"
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/relay", nil)
	r.RemoteAddr = "@"
	commontest.EqualIn(t, "a runner without a pass", http.StatusUnauthorized, (&runnerRoutes{in}).Connect(t.Context(), sockets.Conn{}, r).Status)
	for _, want := range []string{`try again in a second","address":"192.0.2.7"`, `no pass of this deployment","address":"this machine"`} {
		commontest.Contains(t, "the events", want, told.String())
	}
	for _, want := range []string{`"address":"192.0.2.7"}`, `"address":"this machine"}`} {
		commontest.Contains(t, "the log", want, log.String())
	}
}
