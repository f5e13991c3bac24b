package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// reap runs a command as the parent of all processes that it leaves behind, and returns when all
// have ended. Without reap, the CPU time of orphans would be lost: supergateway does not wait for
// the servers that it has stopped. reap passes SIGTERM on to all processes below it.
func reap(command []string) error {
	if len(command) == 0 {
		return errors.New("reap: no command")
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	child, err := os.StartProcess(path, command, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	go func() {
		<-stop
		_ = child.Signal(syscall.SIGTERM) // the child may have ended already; running.stop ends orphans
	}()
	for {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(-1, &status, 0, nil); err != nil {
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			return nil // ECHILD: no child is left
		}
	}
}

// setGroup puts a process into a group of its own, so that an interrupt ends only the benchmark,
// which then stops its processes in order.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
