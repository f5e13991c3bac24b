package local

import (
	"hash/maphash"
	"net/http"
	"net/netip"

	"golang.org/x/time/rate"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Limits on requests for the pages where people sign in and clients register. Those with "Here" are
// for all requests from loopback together, the others for each address.
const (
	visitsPerSecond     = 10
	visitsBurst         = 100
	visitsPerSecondHere = 500
	visitsBurstHere     = 1000
)

// visits limits how often an address may request the pages where people sign in. The callers of
// these pages are not authenticated yet, so limits by principal do not apply.
//
// Requests from loopback share one higher limit, because a proxy may forward the requests of all
// clients.
type visits struct {
	here *rate.Limiter
	seed maphash.Seed
	of   [1024]*rate.Limiter // by the hash of an address: several addresses may share a limiter, so that memory is bounded
}

func newVisits() *visits {
	v := &visits{here: rate.NewLimiter(visitsPerSecondHere, visitsBurstHere), seed: maphash.MakeSeed()}
	for i := range v.of {
		v.of[i] = rate.NewLimiter(visitsPerSecond, visitsBurst)
	}
	return v
}

// limit passes requests on to next. A request above the limit is passed to report instead, and
// answered with 429, in the form of an OAuth error (RFC 6749, §5.2).
func (v *visits) limit(next http.Handler, report func(r *http.Request, status int, refusal string, err error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v.limiter(r.RemoteAddr).Allow() {
			next.ServeHTTP(w, r)
			return
		}
		err := storage.Errorf(storage.Busy, "this address asks too often; try again in a second")
		report(r, http.StatusTooManyRequests, "rate", err)
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"error":"temporarily_unavailable","error_description":"` + err.Message + `"}`)) // the client may be gone
	})
}

// limiter returns the limiter for a request's RemoteAddr. The addresses of an IPv6 /64 network
// share one, because one machine can have them all. A RemoteAddr without an IP address belongs to
// a client on this machine.
func (v *visits) limiter(caller string) *rate.Limiter {
	from, err := netip.ParseAddrPort(caller)
	a := from.Addr().Unmap().WithZone("")
	if err != nil || a.IsLoopback() {
		return v.here
	}
	if a.Is6() {
		network, _ := a.Prefix(64)
		a = network.Addr()
	}
	return v.of[maphash.Comparable(v.seed, a)%uint64(len(v.of))]
}
