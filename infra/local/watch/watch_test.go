package watch_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/watch"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// watched is a folder whose files are watched. Time is virtual.
type watched struct {
	t      *testing.T
	folder string

	mu     sync.Mutex
	paths  []string
	calls  int
	during func() // called by the next change
}

// watching runs a test with files that are watched and have been looked at once.
func watching(t *testing.T, test func(*watched), names ...string) {
	t.Helper()
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &watched{t: t, folder: folder}
		for _, name := range names {
			w.paths = append(w.paths, w.at(name))
		}
		w.write("servers.json", "one")
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			watch.Files(ctx, every, nil, w.watched, w.changed)
		}()
		w.after(every+watch.Quiet, 1)
		test(w)
		cancel()
		<-over
	})
}

func (w *watched) at(name string) string { return filepath.Join(w.folder, name) }

func (w *watched) write(name, text string) {
	w.t.Helper()
	commontest.OK(w.t, os.WriteFile(w.at(name), []byte(text), 0o600))
}

func (w *watched) watched() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.paths)
}

func (w *watched) changed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	if do := w.during; do != nil {
		w.during = nil
		do()
	}
}

// after lets time pass, and checks how many changes were reported since the test began.
func (w *watched) after(d time.Duration, calls int) {
	w.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls != calls {
		w.t.Fatalf("%d changes were told, want %d", w.calls, calls)
	}
}

func (w *watched) add() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paths = append(w.paths, w.at("more.env"))
	return nil
}

const (
	every = time.Second
	soon  = every + watch.Quiet
)

func TestChangeIsToldOnceAndOnlyWhenThereWasOne(t *testing.T) {
	for name, change := range map[string]func(*watched) error{
		"a longer file": func(w *watched) error { w.write("servers.json", "longer"); return nil },
		"another file of the same size and time": func(w *watched) error {
			info, err := os.Stat(w.at("servers.json"))
			if err != nil {
				return err
			}
			w.write("next", "two")
			if err := os.Chtimes(w.at("next"), time.Time{}, info.ModTime()); err != nil {
				return err
			}
			return os.Rename(w.at("next"), w.at("servers.json"))
		},
		"a file that goes":     func(w *watched) error { return os.Remove(w.at("servers.json")) },
		"a file that appears":  func(w *watched) error { w.write(".env", "A=1"); return nil },
		"a path that is added": (*watched).add,
	} {
		t.Run(name, func(t *testing.T) {
			watching(t, func(w *watched) {
				w.after(time.Hour, 1)
				commontest.OK(w.t, change(w))
				w.after(soon, 2)
				w.after(time.Hour, 2)
			}, "servers.json", ".env")
		})
	}
}

func TestFileThatIsBeingSavedIsNotReadYet(t *testing.T) {
	watching(t, func(w *watched) {
		text := "{"
		w.write("servers.json", text)
		time.Sleep(every - watch.Quiet/2)
		for range 20 {
			text += " "
			w.write("servers.json", text)
			w.after(watch.Quiet-time.Millisecond, 1)
		}
		w.after(watch.Quiet, 2)
	}, "servers.json")
}

func TestChangeWhileTheFileIsReadIsTold(t *testing.T) {
	watching(t, func(w *watched) {
		w.mu.Lock()
		w.during = func() { w.write("servers.json", "much longer") }
		w.mu.Unlock()
		w.write("servers.json", "longer")
		w.after(soon, 2)
		w.after(soon, 3)
		w.after(time.Hour, 3)
	}, "servers.json")
}
