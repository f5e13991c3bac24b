package proc

import (
	"os/exec"
	"sync"
)

// children is the processes that this program has started with [Start] and not reaped yet.
var children = register{pids: map[int]bool{}}

// register is a set of the pids of started processes. The lock starts is held for reading while a
// process is started and added. So a caller that holds it for writing misses no process.
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

// Started reports whether this program has started the process with this pid by [Start], and has not
// reaped it. Started first waits for the calls of Start that are under way.
func Started(pid int) bool {
	children.starts.Lock()
	defer children.starts.Unlock()
	return children.pids[pid]
}
