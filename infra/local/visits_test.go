package local

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
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
		h := newVisits().limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
		if got := passed(t, h, "192.0.2.1:1", 1000); got != visitsBurst {
			t.Errorf("%d requests got through at once, want %d", got, visitsBurst)
		}
		time.Sleep(3 * time.Second)
		if got := passed(t, h, "192.0.2.1:2", 1000); got != 3*visitsPerSecond {
			t.Errorf("%d requests got through after three seconds, want %d", got, 3*visitsPerSecond)
		}
		if got := passed(t, h, "[::ffff:192.0.2.1]:3", 10); got != 0 {
			t.Errorf("%d requests got through in the other form of the address", got)
		}
		var network int
		for i := range 1000 {
			network += passed(t, h, fmt.Sprintf("[2001:db8::%x]:1", i+1), 1)
		}
		if network != visitsBurst {
			t.Errorf("%d requests got through from one network, want %d", network, visitsBurst)
		}
		// All callers behind a proxy on this machine come from loopback, and share one limit.
		here := 0
		for _, from := range []string{"127.0.0.1:9", "[::1]:9", "[::ffff:127.0.0.1]:9", "@"} {
			here += passed(t, h, from, 1000)
		}
		if here != visitsBurstHere {
			t.Errorf("%d of 4000 requests from this machine got through, want %d", here, visitsBurstHere)
		}
		time.Sleep(time.Second)
		if got := passed(t, h, "127.0.0.2:9", 1000); got != visitsPerSecondHere {
			t.Errorf("%d requests from this machine got through after a second, want %d", got, visitsPerSecondHere)
		}
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
