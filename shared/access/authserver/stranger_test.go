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
)

// A stranger names URLs, of hosts that answer and of hosts that do not, and registers clients.
// Nothing is stored until a user has signed in.
func TestStrangersStoreNothing(t *testing.T) {
	s, w := documented(t)
	w.answer = func(r *http.Request) (int, http.Header, string, error) {
		if strings.HasPrefix(r.URL.Host, "10.") {
			return 0, nil, "", errors.New("not reached")
		}
		return http.StatusOK, http.Header{}, doc(r.URL.String(), nil), nil
	}
	for i := range 20 {
		for _, host := range []string{"10.0.0.1", "client.example"} {
			s.get(ask(request(fmt.Sprintf("https://%s/%d.json", host, i))))
		}
	}
	s.register(cursor()...)
	commontest.EqualIn(t, "writes", 0, s.store.Counts().Writes)
}

func TestDocumentOfAClientInUseIsStored(t *testing.T) {
	s, w := documented(t)
	signIn := func() {
		g := s.code("client_id", clientURL)
		s.granted(with(g.form, "client_id", clientURL))
	}
	signIn()
	signIn()
	s.warm, s.made = false, nil
	signIn()
	commontest.EqualIn(t, "requests for it", 1, w.asked.Load())
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
				s, w := documented(t)
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
				var all sync.WaitGroup
				for i := range 40 {
					id := test.id
					if strings.Contains(id, "%d") {
						id = fmt.Sprintf(id, i)
					}
					all.Go(func() {
						res := s.get(ask(request(id)))
						commontest.Equal(t, http.StatusOK, res.StatusCode)
					})
				}
				synctest.Wait()
				commontest.EqualIn(t, "fetches at a time", test.most, now.Load())
				close(gate)
				all.Wait()
				if most.Load() > test.most || w.asked.Load() > test.all {
					t.Errorf("at most %d fetches at a time, %d in all", most.Load(), w.asked.Load())
				}
			})
		})
	}
}
