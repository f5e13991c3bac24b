package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// Intervals and bounds of the checks of the data folder.
const (
	inspectEvery = time.Hour       // between two inspections: each reads the whole store, to find damage that no call has touched
	lookEvery    = 2 * time.Second // between two checks of the unix sockets, the disk, and whether the store has changed
	// A store that changes is inspected more often, but for at most 1/inspectShare of the time.
	inspectShare = 100
)

// upkeep is what a machine knows about the state of its data folder.
type upkeep struct {
	unused  bool        // no earlier run has left anything in the store
	damaged atomic.Bool // the store is damaged or lost
	stuck   atomic.Bool // the store cannot be written, as on a full disk
	unix    []unixSocket
	end     func() // stops what startUpkeep has begun, and waits for it; nil until then
}

// storesNothing reports whether the store takes no writes any more.
func (u *upkeep) storesNothing() bool { return u.damaged.Load() || u.stuck.Load() }

// unixSocket is an open unix socket of the data folder, and the handler that it serves.
type unixSocket struct {
	name string
	h    http.Handler
	use  *use
}

// trouble reports to the log and the journal that a file of the data folder cannot be used.
func trouble(m *machine, reason, hint string) {
	m.log.Error("a file of the data folder cannot be used", "reason", reason)
	m.recorder.Record(journal.Event{Kind: journal.FolderTrouble, Reason: reason, Hint: hint})
}

// storeDamaged is called once if the store turns out to be damaged or lost.
func storeDamaged(m *machine, err error) {
	m.upkeep.damaged.Store(true)
	trouble(m, err.Error(), "nothing is stored or executed any more")
}

// openHistory opens the history of earlier runs. If that fails, the history is kept in memory
// only: a lost history is no reason not to serve.
func openHistory(m *machine) {
	path := m.folder.File(HistoryFile)
	err := m.history.Open(path)
	if err == nil {
		return
	}
	setAside(m, "the history of calls", path, err)
	if err := m.history.Open(path); err != nil {
		trouble(m, "the history of calls is kept in memory, until this run ends: "+err.Error(), "")
	}
}

// setAside renames a file that cannot be read, and reports that. If the disk is full, the file
// itself may be intact, so setAside leaves it where it is.
func setAside(m *machine, what, path string, why error) {
	if free, known := sqlitestore.FreeSpace(path); known && free == 0 {
		trouble(m, fmt.Sprintf("%s cannot be opened: %v", what, why), "the disk is full: free some room")
		return
	}
	aside := path + ".damaged-" + time.Now().UTC().Format("20060102-150405")
	for _, ending := range []string{"", "-wal", "-shm"} {
		if err := os.Rename(path+ending, aside+ending); err != nil && !errors.Is(err, fs.ErrNotExist) {
			trouble(m, fmt.Sprintf("%s cannot be opened: %v", what, why), "")
			return
		}
	}
	trouble(m, fmt.Sprintf("%s could not be read, and begins anew: %v", what, why), "the old file is "+aside)
}

// startUpkeep begins to check the data folder in the background. Call it after everything else has
// started.
func startUpkeep(ctx context.Context, m *machine) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	m.upkeep.end = func() {
		cancel()
		work.Wait()
	}
	work.Go(func() { look(ctx, m) })
}

// look checks the data folder until ctx ends. It inspects the store every inspectEvery, and also
// soon after a write to it.
func look(ctx context.Context, m *machine) {
	inspected, next, took := time.Now(), time.Now().Add(inspectEvery), time.Duration(0)
	for storage.Rest(ctx, lookEvery) == nil {
		renewSockets(m)
		s, ok := m.functions.Records().(*sqlitestore.Store)
		if !ok || m.upkeep.damaged.Load() {
			continue
		}
		lookAtDisk(ctx, m, s)
		begun := time.Now()
		if begun.Before(next) && (!s.Changed().After(inspected) || begun.Sub(inspected) < inspectShare*took) {
			continue
		}
		if err := s.Inspect(ctx); err != nil && ctx.Err() == nil {
			m.log.Warn("the store could not be inspected", "error", err)
		}
		inspected, next, took = begun, begun.Add(inspectEvery), time.Since(begun)
	}
}

// lookAtDisk reports when the store cannot be written any more, and when it can be written again.
func lookAtDisk(ctx context.Context, m *machine, s storage.Writable) {
	err := s.Writable(ctx)
	if m.upkeep.damaged.Load() || m.upkeep.stuck.Swap(err != nil) == (err != nil) || ctx.Err() != nil {
		return
	}
	if err != nil {
		trouble(m, err.Error(), "until then nothing is executed")
		return
	}
	// Clean up again, because the last cleanup may have failed while the store could not be written.
	select {
	case <-m.functions.Sweep(nil):
	case <-ctx.Done():
	}
	m.log.Info("the store can be written again")
	m.recorder.Record(journal.Event{Kind: journal.FolderWell, Detail: "the session store can be written again, and everything goes on"})
}

// renewSockets opens those unix sockets again whose files were deleted.
func renewSockets(m *machine) {
	for _, s := range m.upkeep.unix {
		path := m.folder.Socket(s.name)
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), m.listenUnix(s)); err != nil {
			m.log.Error("a unix socket is gone and cannot be opened again", "socket", s.name, "error", err)
			continue
		}
		m.log.Warn("a unix socket was gone, and is open again", "socket", s.name)
	}
}

// healthPatience is how long the store may take to answer before it counts as failed.
const healthPatience = 5 * time.Second

// health serves /healthz: 200 and "ok", or 503 and a line for each part of the machine that does
// not work.
func health(m *machine, w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), healthPatience)
	defer cancel()
	w.Header().Set("Cache-Control", "no-store")
	lines := wrong(ctx, m)
	if len(lines) == 0 {
		_, _ = w.Write([]byte("ok\n"))
		return
	}
	http.Error(w, strings.Join(lines, "\n"), http.StatusServiceUnavailable)
}

// wrong returns a line for each part that does not work. Anybody may read the lines, so they name
// no path.
func wrong(ctx context.Context, m *machine) (lines []string) {
	store := m.functions.Records()
	_, err := store.Keys().Get(ctx, "health")
	if errors.Is(err, storage.NotFound) {
		err = nil
	}
	if disk, ok := store.(storage.Writable); err == nil && ok {
		err = disk.Writable(ctx)
	}
	if err != nil {
		m.log.Warn("the store does not work", "error", err)
		lines = append(lines, "store: failed")
	}
	if _, err = os.Stat(m.folder.Socket("relay")); err == nil {
		err = m.boxes.CanStart()
	}
	if err != nil {
		m.log.Warn("no box can start", "error", err)
		lines = append(lines, "boxes: none can start")
	}
	return lines
}
