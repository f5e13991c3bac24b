package local

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/store/sessiontest"
)

// full is a store on a disk that is full: it reads, and cannot write.
type full struct{ session.Store }

// Writable implements [session.Writable].
func (full) Writable(context.Context) error { return errors.New("the disk of /data is full") }

// damaged is a store that cannot be read.
type damaged struct{ session.Store }

// Keys implements [session.Store].
func (damaged) Keys() session.Collection[session.Key] { return lost{} }

type lost struct {
	session.Collection[session.Key]
}

// Get implements [session.Collection].
func (lost) Get(context.Context, string) (session.Key, error) {
	return session.Key{}, errors.New("the session store is damaged")
}

// troubled has the functions of a machine whose store is in trouble.
type troubled struct {
	Functions
	store session.Store
}

func (f troubled) Records() session.Store { return f.store }

// A monitor gets one line for each part that does not work, and no path.
func TestHealthSaysWhatDoesNotWork(t *testing.T) {
	m := started(t, func(c *Config) { c.Runner = []string{"/bin/sh"} })
	ask := func() (status int, body string) {
		w := httptest.NewRecorder()
		health(m)(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil))
		return w.Code, w.Body.String()
	}
	if status, body := ask(); status != http.StatusOK || body != "ok\n" {
		t.Errorf("all is well: %d %q", status, body)
	}
	healthy := m.functions
	for name, store := range map[string]session.Store{
		"full":    full{sessiontest.NewMemory()},
		"damaged": damaged{sessiontest.NewMemory()},
	} {
		m.functions = troubled{healthy, store}
		if status, body := ask(); status != http.StatusServiceUnavailable || body != "store: failed\n" {
			t.Errorf("%s: %d %q", name, status, body)
		}
	}
	m.functions = healthy
	m.upkeep.end() // it would make the socket anew
	if err := os.Remove(m.folder.Socket("relay")); err != nil {
		t.Fatal(err)
	}
	if status, body := ask(); status != http.StatusServiceUnavailable || body != "boxes: none can start\n" {
		t.Errorf("without the relay's socket: %d %q", status, body)
	}
}
