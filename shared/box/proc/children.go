package proc

import (
	"os/exec"
	"sync"
)

// children is the pids of the processes that this program has started with [Start] and not reaped
// yet. The lock starts is held for reading while a process is started and added. So a caller that
// holds it for writing misses no process.
var (
	children sync.Map
	starts   sync.RWMutex
)

func startChild(cmd *exec.Cmd, start func() error) error {
	starts.RLock()
	defer starts.RUnlock()
	err := start()
	if err == nil {
		children.Store(cmd.Process.Pid, true)
	}
	return err
}

// Started reports whether this program has started the process with this pid by [Start], and has not
// reaped it. Started first waits for the calls of Start that are under way.
func Started(pid int) bool {
	starts.Lock()
	defer starts.Unlock()
	_, ok := children.Load(pid)
	return ok
}
