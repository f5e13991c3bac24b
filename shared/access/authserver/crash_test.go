package authserver_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
	"github.com/dormouse-mcp/dormouse/shared/store/storetest"
)

// crashing is the store of a function that may crash at one of its next calls, before or
// after the store executes the call. The answer of the store may also be lost.
type crashing struct {
	random *rand.Rand
	in     int // calls until the crash; 0: none
	after  bool
	armed  bool
}

func (c *crashing) around(ctx context.Context, _ *intercept.Call, do func(context.Context) error) error {
	if c.in--; c.in == 0 && !c.after {
		panic(http.ErrAbortHandler)
	}
	err := do(ctx)
	if c.in == 0 && c.after {
		panic(http.ErrAbortHandler)
	}
	if c.in > 0 && c.random.IntN(8) == 0 {
		return storage.Errorf(storage.Unavailable, "simulated: the answer was lost")
	}
	return err
}

// sim is a broker whose functions crash, and what its clients know.
type sim struct {
	*site
	*crashing
	codes []*simCode
}

// simCode is a code, and the tokens that came for it.
type simCode struct {
	grant
	access  []string
	refresh string
	until   time.Time
	sent    bool // an answer with tokens left the function
	over    bool // the last answer to the client said that its grant is over
}

// send posts to /token. The function may crash, and the answer may be lost after it was sent.
func (s *sim) send(c *simCode, f url.Values) {
	s.in, s.after = 0, s.random.IntN(2) == 0
	if s.random.IntN(2) == 0 {
		s.in, s.armed = 1+s.random.IntN(6), true
	}
	w := httptest.NewRecorder()
	func() {
		defer func() {
			if r := recover(); r != nil && r != http.ErrAbortHandler { //nolint:errorlint // a panic's value
				panic(r)
			}
		}()
		r := httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, at+"/token", strings.NewReader(f.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		s.site.broker().ServeHTTP(w, r)
	}()
	crashed := s.in <= 0 && s.armed
	s.in, s.armed = 0, false
	// The broker does not keep a code that has expired, so its refusal says nothing about
	// the code's grant.
	asked := f.Get("grant_type") == "refresh_token" || time.Now().Before(c.until)
	c.over = !crashed && w.Code == http.StatusBadRequest && asked
	if w.Code != http.StatusOK || w.Body.Len() == 0 {
		return
	}
	c.sent = true
	if s.random.IntN(4) == 0 {
		return // lost on its way to the client
	}
	got := answer(s.t, replied(w))
	c.access, c.refresh = append(c.access, got["access_token"].(string)), got["refresh_token"].(string)
}

// grants counts the grants that a code became: all grants of its client, which has no other code.
func (s *sim) grants(c *simCode) (live, revoked int) {
	all, err := s.store.Grants().List(s.t.Context(), "", "", 100)
	commontest.OK(s.t, err)
	for _, g := range all {
		switch {
		case g.Client != c.client:
		case !g.Revoked.IsZero():
			revoked++
		case g.Expires.After(time.Now()):
			live++
		}
	}
	return live, revoked
}

func (s *sim) step() {
	c := s.codes[s.random.IntN(len(s.codes))]
	switch s.random.IntN(4) {
	case 0:
		time.Sleep(time.Duration(s.random.IntN(40)) * time.Second)
	case 1, 2:
		s.send(c, c.form)
	default:
		if c.refresh != "" {
			s.send(c, refreshing(c.client, c.refresh))
		}
	}
}

// Whenever the functions crash, no grant is live after a minute unless tokens
// of it were sent. Even if requests come twice, a client that got tokens can refresh them
// or sees its grant end, and tokens of a revoked grant are refused after 30 seconds.
func TestACrashLeavesNoGrantWithoutAHolder(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open storetest.Open) { crash(t, open, 0, 3) })
	t.Run("memory", func(t *testing.T) {
		crash(t, func(testing.TB) storage.Store { return storagetest.NewMemory() }, 3, 100)
	})
}

func crash(t *testing.T, open storetest.Open, first, last uint64) {
	t.Helper()
	for seed := first; seed < last; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				faults := &crashing{random: rand.New(rand.NewPCG(seed, 50))} //nolint:gosec // a simulation
				failing := func(t testing.TB) storage.Store { return intercept.New(open(t), faults.around) }
				s := &sim{site: newSiteOn(t, failing, nil), crashing: faults}
				for range 3 {
					s.codes = append(s.codes, &simCode{grant: s.code(), until: time.Now().Add(59 * time.Second)})
				}
				for range 12 {
					s.step()
				}
				time.Sleep(61 * time.Second)
				for i, c := range s.codes {
					live, revoked := s.grants(c)
					if live > 0 && !c.sent {
						t.Errorf("code %d has a live grant, but its tokens were never sent", i)
					}
					if live+revoked > 1 {
						t.Errorf("code %d became %d live and %d revoked grants", i, live, revoked)
					}
					if revoked > 0 && c.over {
						for _, token := range c.access {
							if s.good(token, "files") {
								t.Errorf("code %d: a token of a revoked grant is accepted", i)
							}
						}
					}
				}
			})
		})
	}
}
