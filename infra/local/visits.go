package local

import (
	"hash/maphash"
	"net/http"
	"net/netip"

	"golang.org/x/time/rate"
)

// Limits of one address at the pages where people sign in and clients register.
const (
	visitsPerSecond = 10
	visitsBurst     = 100
)

// visits bounds how often an address may ask for the pages where people sign in. The
// callers of these pages are not authenticated yet, so limits by principal do not apply.
// On AWS the throttles of the API do this.
//
// Requests from loopback have no limit: they come from this machine, or from a proxy that
// forwards the requests of all clients.
type visits struct {
	seed maphash.Seed
	of   [1024]*rate.Limiter // by the hash of an address: memory is bounded, and two may share one
}

func newVisits() *visits {
	v := &visits{seed: maphash.MakeSeed()}
	for i := range v.of {
		v.of[i] = rate.NewLimiter(visitsPerSecond, visitsBurst)
	}
	return v
}

// limit answers requests above the limit with 429, in the form of OAuth errors (RFC 6749,
// §5.2), and passes the others on.
func (v *visits) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || from.Addr().Unmap().IsLoopback() || v.limiter(from.Addr()).Allow() {
			next.ServeHTTP(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"error":"temporarily_unavailable","error_description":"this address asks too often; try again in a second"}`)) // the client may be gone
	})
}

// limiter returns the limiter of an address. All addresses of an IPv6 network of 64 bits
// share one, because one machine can have them all.
func (v *visits) limiter(a netip.Addr) *rate.Limiter {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		network, _ := a.Prefix(64)
		a = network.Addr()
	}
	return v.of[maphash.Comparable(v.seed, a)%uint64(len(v.of))]
}
