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

// Times at which the data folder is looked at.
const (
	inspectEvery = time.Hour       // between two reads of the whole store, which find damage that no call has met
	lookEvery    = 2 * time.Second // between two looks at the unix sockets, the disk, and whether the store was written
	// inspectShare is the share of time in which a store that is written is read as a whole.
	inspectShare = 100
)

// upkeep is what a machine knows of its data folder while it runs.
type upkeep struct {
	unused  bool        // no earlier run has left anything in the store
	damaged atomic.Bool // the store is damaged or lost
	stuck   atomic.Bool // the store cannot be written, as on a full disk
	unix    []unixSocket
	end     func() // ends what startUpkeep began, and waits for it; nil before
}

// storesNothing reports whether what ends now cannot be stored.
func (u *upkeep) storesNothing() bool { return u.damaged.Load() || u.stuck.Load() }

// unixSocket is an open unix socket of the data folder, and what it serves.
type unixSocket struct {
	name string
	h    http.Handler
	use  *use
}

// trouble tells the operator that a file of the data folder cannot be used, in the log and on the
// terminal.
func trouble(m *machine, reason, hint string) {
	m.log.Error("a file of the data folder cannot be used", "reason", reason)
	m.recorder.Record(journal.Event{Kind: journal.FolderTrouble, Reason: reason, Hint: hint})
}

// storeDamaged is called once, when the store turns out to be damaged or lost.
func storeDamaged(m *machine, err error) {
	m.upkeep.damaged.Store(true)
	trouble(m, err.Error(), "nothing is stored or executed any more")
}

// openHistory continues the history of calls. Without its file it is kept in memory: a
// history that cannot be had is no reason not to serve.
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

// setAside gives a file that cannot be read another name, and says so. It keeps the file in
// place if the disk is full: then the file is no worse than before.
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

// startUpkeep begins to look after the data folder; see look. Call it after everything else has
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

// look looks after the data folder until ctx ends. It reads the whole store at intervals, and
// soon after something was written to it: another program may have.
func look(ctx context.Context, m *machine) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	inspected, next, took := time.Now(), time.Now().Add(inspectEvery), time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
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

// lookAtDisk tells people when the store cannot be written any more, and when it can again.
func lookAtDisk(ctx context.Context, m *machine, s storage.Writable) {
	err := s.Writable(ctx)
	if m.upkeep.damaged.Load() || m.upkeep.stuck.Swap(err != nil) == (err != nil) || ctx.Err() != nil {
		return
	}
	if err != nil {
		trouble(m, err.Error(), "until then nothing is executed")
		return
	}
	// The sweep at the start, or after the end of a box, may have failed.
	select {
	case <-m.functions.Sweep(nil):
	case <-ctx.Done():
	}
	m.log.Info("the store can be written again")
	m.recorder.Record(journal.Event{Kind: journal.FolderWell, Detail: "the session store can be written again, and everything goes on"})
}

// renewSockets opens the unix sockets again whose files are gone. Without the relay's socket no box
// can reach this machine, and without the control socket no command.
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

// canStart returns why no box can start, as far as the machine can see.
func canStart(m *machine) error {
	if _, err := os.Stat(m.folder.Socket("relay")); err != nil {
		return err
	}
	return m.boxes.CanStart()
}

// healthPatience is how long the store may take to answer until it counts as failed.
const healthPatience = 5 * time.Second

// health says which parts of the machine do not work: 200 and "ok", or 503 with a line for
// each part.
func health(m *machine) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
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
}

// wrong returns a line for each part that does not work. A stranger may read it, so it
// names no path.
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
	if err := canStart(m); err != nil {
		m.log.Warn("no box can start", "error", err)
		lines = append(lines, "boxes: none can start")
	}
	return lines
}
