package runner

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box"
)

// maxGone is how many ended processes a status file keeps, the newest ones.
const maxGone = 16

// statusEnding is the suffix of a status file, which is beside the logs of the server:
// TASK.processes.
const statusEnding = ".processes"

// notice is the entry of a status file for one process.
type notice struct {
	Process  string    `json:"process"`
	PID      int       `json:"pid,omitempty"`
	State    string    `json:"state"`           // a box.ProcessState
	Phase    string    `json:"phase,omitempty"` // the step at which the process failed
	Detail   string    `json:"detail,omitempty"`
	Since    time.Time `json:"since"`    // when the process got into that state
	Restarts int       `json:"restarts"` // how often this runner restarted it
}

// statusFile is a file with the states of a box's processes. It contains no secrets, and only the
// user of the runner can read it. The runner removes the file at its end, unless it is killed. A
// box inside of this program has no file: [Processes] returns its states. A nil statusFile shows
// nothing.
type statusFile struct {
	path string // path of the file; "" for a box inside of this program
	task string // the id of the box's task, if path is ""
	log  *slog.Logger

	mu     sync.Mutex
	all    map[string]notice
	starts map[string]int // how often each process was started
	failed bool           // writing the file has failed, and the failure was logged
}

// newStatusFile makes the status file of a task, in the log folder of the server. The file is named
// after the part of the task's id behind the last slash.
func newStatusFile(folder, task string, log *slog.Logger) *statusFile {
	return &statusFile{
		path: filepath.Join(folder, oneLine(filepath.Base(task))+statusEnding), log: log,
		all: map[string]notice{}, starts: map[string]int{},
	}
}

// inside has the *statusFile of each box inside of this program, by the box's task.
var inside sync.Map

// showInside makes the statusFile of a box inside of this program.
func showInside(task string, log *slog.Logger) *statusFile {
	b := &statusFile{task: task, log: log, all: map[string]notice{}, starts: map[string]int{}}
	inside.Store(task, b)
	return b
}

// Processes returns the states of the processes of a box inside of this program, in the format of
// a status file. The result ok is false if this program has no box of the task.
func Processes(task string) (text []byte, ok bool) {
	v, ok := inside.Load(task)
	if !ok {
		return nil, false
	}
	b, _ := v.(*statusFile)
	b.mu.Lock()
	defer b.mu.Unlock()
	text, err := b.text()
	return text, err == nil
}

// show records the state of a process, and writes the file.
func (b *statusFile) show(s box.ProcessStatus) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := notice{Process: s.Process, PID: s.PID, State: string(s.State), Phase: string(s.Phase), Detail: s.Detail, Since: time.Now().UTC()}
	if before, ok := b.all[s.Process]; ok && before.State == n.State {
		n.Since = before.Since // only the detail has changed
	}
	if s.State == box.Started && b.all[s.Process].State != n.State {
		b.starts[s.Process]++
	}
	n.Restarts = max(0, b.starts[s.Process]-1)
	b.all[s.Process] = n
	b.prune()
	if err := b.write(); err != nil && !b.failed {
		b.failed = true
		b.log.Warn("cannot write the states of processes for dormouse ps", "error", err)
	}
}

// prune keeps the maxGone processes that ended last, and removes all others that have ended.
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

func (b *statusFile) text() ([]byte, error) {
	all := slices.SortedFunc(maps.Values(b.all), func(x, y notice) int { return cmp.Compare(x.Process, y.Process) })
	return json.Marshal(append([]notice{}, all...)) // never null
}

// write replaces the file by a rename.
func (b *statusFile) write() error {
	if b.path == "" {
		return nil
	}
	text, err := b.text()
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

func (b *statusFile) remove() {
	switch {
	case b == nil:
	case b.path == "":
		inside.Delete(b.task)
	default:
		_ = os.Remove(b.path) // an error is ignored, because the file may not exist
	}
}
