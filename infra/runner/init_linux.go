package runner

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// supervise runs a program while this process is the first process of a container: it passes
// signals on to the program and reaps all orphans. supervise returns the program's exit code, or
// 128 plus the number of the signal that killed it. The runner itself must not reap every process,
// because it would lose the exit codes of its servers.
func supervise(path string, args, env []string) (code int, err error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	child, err := os.StartProcess(path, args, &os.ProcAttr{Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, fmt.Errorf("start the runner under the first process: %w", err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case s := <-signals:
				_ = child.Signal(s) // an error means that the child has ended
			case <-ended:
				return
			}
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the runner: %w", err)
		case pid == child.Pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == child.Pid:
			return status.ExitStatus(), nil
		}
	}
}
