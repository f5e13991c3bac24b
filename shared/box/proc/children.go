package proc

import (
	"os/exec"
	"sync"
)

// children has the processes of boxes that this program has started and not reaped yet.
var children = register{pids: map[int]bool{}}

// register is a set of pids. Whoever starts a process or changes the set holds starts for
// reading. So whoever holds starts for writing knows that no process is just being started.
type register struct {
	starts sync.RWMutex
	mu     sync.Mutex
	pids   map[int]bool
}

func (r *register) start(cmd *exec.Cmd, start func() error) error {
	r.starts.RLock()
	defer r.starts.RUnlock()
	err := start()
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pids[cmd.Process.Pid] = true
	}
	return err
}

func (r *register) ended(pid int) {
	r.starts.RLock()
	defer r.starts.RUnlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pids, pid)
}

// Started reports whether a pid that was seen before the call is that of a child that this
// program has started with [Start].
func Started(pid int) bool {
	children.starts.Lock()
	defer children.starts.Unlock()
	return children.pids[pid]
}
