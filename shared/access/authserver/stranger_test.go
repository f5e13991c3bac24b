package authserver_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/storetest"
)

// A stranger names URLs, of hosts that answer and of hosts that do not. Nothing is stored
// until a user has signed in.
func TestStrangersStoreNothing(t *testing.T) {
	storetest.One(t, func(t *testing.T, open storetest.Open) {
		s, w := documented(t, open)
		w.answer = func(r *http.Request) (int, http.Header, string, error) {
			if strings.HasPrefix(r.URL.Host, "10.") {
				return 0, nil, "", errors.New("not reached")
			}
			return http.StatusOK, http.Header{}, doc(r.URL.String(), nil), nil
		}
		_, challenge := pkce()
		for i := range 20 {
			for _, host := range []string{"10.0.0.1", "client.example"} {
				s.browser().open(http.MethodGet, at+"/authorize?"+request(fmt.Sprintf("https://%s/%d.json", host, i), challenge).Encode(), nil)
			}
		}
		commontest.EqualIn(t, "writes", 0, s.store.Counts().Writes)
	})
}

// A document for which a user has signed in is stored once, so a new instance need not
// fetch it.
func TestDocumentOfAClientInUseIsStored(t *testing.T) {
	storetest.One(t, func(t *testing.T, open storetest.Open) {
		s, w := documented(t, open)
		w.answer = func(r *http.Request) (int, http.Header, string, error) {
			return http.StatusOK, http.Header{}, doc(r.URL.String(), nil), nil
		}
		signIn := func() {
			g := s.code("client_id", clientURL)
			if status, got := s.token(with(g.form, "client_id", clientURL)); status != http.StatusOK {
				t.Fatal(status, got)
			}
		}
		signIn()
		signIn()
		s.warm, s.made = false, nil
		signIn()
		commontest.EqualIn(t, "requests for it", 1, w.asked.Load())
	})
}

// Fetches that strangers cause are few at a time, for one host and for all. Further
// requests wait, and those for a document that came meanwhile need no fetch.
func TestFetchesAtATimeAreBounded(t *testing.T) {
	for name, test := range map[string]struct {
		id   string // %d is the number of the request
		most int32  // fetches at a time
		all  int32
	}{
		"one host":       {"https://client.example/%d.json", 2, 40},
		"many hosts":     {"https://c%d.example/c.json", 16, 40},
		"one document":   {clientURL, 2, 2},
		"case of a host": {"https://client.EXAMPLE/%d.json", 2, 40},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := documented(t, storetest.SQLite)
				var now, most atomic.Int32
				gate := make(chan struct{})
				w.answer = func(r *http.Request) (int, http.Header, string, error) {
					n := now.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					<-gate
					now.Add(-1)
					return http.StatusOK, http.Header{}, doc(r.URL.String(), nil), nil
				}
				s.broker()
				_, challenge := pkce()
				var all sync.WaitGroup
				for i := range 40 {
					id := test.id
					if strings.Contains(id, "%d") {
						id = fmt.Sprintf(id, i)
					}
					all.Go(func() {
						res := s.browser().open(http.MethodGet, at+"/authorize?"+request(id, challenge).Encode(), nil)
						if res.StatusCode != http.StatusOK {
							t.Error(res.Status)
						}
					})
				}
				synctest.Wait()
				if got := now.Load(); got != test.most {
					t.Errorf("%d fetches at a time, want %d", got, test.most)
				}
				close(gate)
				all.Wait()
				if most.Load() > test.most || w.asked.Load() > test.all {
					t.Errorf("at most %d fetches at a time, %d in all", most.Load(), w.asked.Load())
				}
			})
		})
	}
}
