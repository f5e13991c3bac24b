package local

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local/bill"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// full is a store on a disk that is full: it reads, and cannot write.
type full struct{ storage.Store }

// Writable implements [storage.Writable].
func (full) Writable(context.Context) error { return errors.New("the disk of /data is full") }

// damaged is a store that cannot be read.
type damaged struct{ storage.Store }

// Keys implements [storage.Store].
func (damaged) Keys() storage.Collection[storage.Key] { return lost{} }

type lost struct {
	storage.Collection[storage.Key]
}

// Get implements [storage.Collection].
func (lost) Get(context.Context, string) (storage.Key, error) {
	return storage.Key{}, errors.New("the session store is damaged")
}

// A monitor gets one line for each part that does not work, and no path.
func TestHealthSaysWhatDoesNotWork(t *testing.T) {
	m := started(t, func(c *Config) { c.Runner = []string{"/bin/sh"} })
	ask := func() (status int, body string) {
		w := httptest.NewRecorder()
		health(m, w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil))
		return w.Code, w.Body.String()
	}
	if status, body := ask(); status != http.StatusOK || body != "ok\n" {
		t.Errorf("all is well: %d %q", status, body)
	}
	healthy := m.functions
	for name, store := range map[string]storage.Store{
		"full":    full{storagetest.NewMemory()},
		"damaged": damaged{storagetest.NewMemory()},
	} {
		t.Run(name, func(t *testing.T) {
			m.functions = &stub{Functions: healthy, store: store}
			if status, body := ask(); status != http.StatusServiceUnavailable || body != "store: failed\n" {
				t.Errorf("%s: %d %q", name, status, body)
			}
		})
	}
	m.functions = healthy
	m.upkeep.end() // it would make the socket anew
	commontest.OK(t, os.Remove(m.folder.Socket("relay")))
	if status, body := ask(); status != http.StatusServiceUnavailable || body != "boxes: none can start\n" {
		t.Errorf("without the relay's socket: %d %q", status, body)
	}
}

// Files that nobody needs never stop a start.
func TestHistoryAndUsageThatCannotBeReadBeginAnew(t *testing.T) {
	var told commontest.Lines
	m := started(t, func(c *Config) {
		c.JSON = &told
		commontest.OK(t, os.Mkdir(c.Data, 0o700))
		for _, name := range []string{HistoryFile, bill.File} {
			commontest.OK(t, os.WriteFile(filepath.Join(c.Data, name), []byte("nonsense, and more of it"), 0o600))
		}
	})
	commontest.EqualIn(t, "the terminal is told of troubles", 2, strings.Count(told.Take(), `"kind":"folder.trouble"`))
	kept, err := filepath.Glob(filepath.Join(m.folder.Path, "*.damaged-*"))
	if err != nil || len(kept) != 2 {
		t.Errorf("of the old files %q are left, %v", kept, err)
	}
}
