package runner

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box"
)

// Of the processes that are gone, a status file keeps the newest so many.
const maxGone = 16

// statusEnding is that of a status file, which is beside the logs of the server:
// TASK.processes.
const statusEnding = ".processes"

// notice is what a status file says of one process: that of a session, or of those that
// share it. It is for dormouse ps, which reads it as JSON.
type notice struct {
	Process  string    `json:"process"`
	PID      int       `json:"pid,omitempty"`
	State    string    `json:"state"`           // see box.ProcessState
	Phase    string    `json:"phase,omitempty"` // in which it failed
	Detail   string    `json:"detail,omitempty"`
	Since    time.Time `json:"since"`    // it is in that state
	Restarts int       `json:"restarts"` // how often it was started anew by this runner
}

// statusFile is a file that shows how the processes of a box are. It holds no secrets and
// is its user's alone. It is gone when the runner has ended; that of one that was
// killed stays, and is of a task that does not run. A nil statusFile shows nothing.
type statusFile struct {
	path string
	log  *slog.Logger

	mu     sync.Mutex
	all    map[string]notice
	starts map[string]int
	failed bool // it cannot be written, which has been logged
}

// newStatusFile makes the status file of a task in the folder of a server's logs.
func newStatusFile(folder, task string, log *slog.Logger) *statusFile {
	return &statusFile{
		path: filepath.Join(folder, fileName(task)+statusEnding), log: log,
		all: map[string]notice{}, starts: map[string]int{},
	}
}

// show notes how a process is.
func (b *statusFile) show(s box.ProcessStatus) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := notice{Process: s.Process, PID: s.PID, State: string(s.State), Phase: string(s.Phase), Detail: s.Detail, Since: time.Now().UTC()}
	if before, ok := b.all[s.Process]; ok && before.State == n.State {
		n.Since = before.Since // the next step of the same
	}
	if s.State == box.Started {
		b.starts[s.Process]++
	}
	n.Restarts = max(0, b.starts[s.Process]-1)
	b.all[s.Process] = n
	b.prune()
	if err := b.write(); err != nil && !b.failed {
		b.failed = true
		b.log.Warn("dormouse ps cannot be told how processes are", "error", err)
	}
}

// prune forgets the processes that have been gone for longest.
func (b *statusFile) prune() {
	var gone []notice
	for _, n := range b.all {
		if n.State == string(box.Stopped) || n.State == string(box.Exited) {
			gone = append(gone, n)
		}
	}
	slices.SortFunc(gone, func(x, y notice) int { return y.Since.Compare(x.Since) })
	for _, n := range gone[min(maxGone, len(gone)):] {
		delete(b.all, n.Process)
		delete(b.starts, n.Process)
	}
}

// write puts a whole file in the place of the one before.
func (b *statusFile) write() error {
	all := make([]notice, 0, len(b.all))
	for _, n := range b.all {
		all = append(all, n)
	}
	slices.SortFunc(all, func(x, y notice) int { return cmp.Compare(x.Process, y.Process) })
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(b.path), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(b.path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(b.path+".new", b.path)
}

// remove removes the file.
func (b *statusFile) remove() {
	if b != nil {
		_ = os.Remove(b.path) // it may never have been written
	}
}
