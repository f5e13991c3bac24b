package programtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	readyLimit = time.Minute
	stopLimit  = 10 * time.Second // then a stopped process is killed
)

// Process is a started endpoint.
type Process struct {
	cmd    *exec.Cmd
	out    *output
	exited chan struct{}
}

// Start runs a command, with env added to our environment, until the test ends. The
// command gets a process group of its own. Processes that it leaves in the group are
// killed with it. If the test has failed, Start logs the end of the command's output.
func Start(t testing.TB, env []string, command ...string) *Process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &Process{
		cmd:    exec.CommandContext(ctx, command[0], command[1:]...),
		out:    &output{ready: make(chan []byte, 256)},
		exited: make(chan struct{}),
	}
	p.cmd.Env = append(p.cmd.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = stopLimit
	if err := p.cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // the test stops the program itself, so the exit code does not matter
	}()
	t.Cleanup(func() {
		cancel()
		<-p.exited
		if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Errorf("kill what %s left behind: %v", command[0], err)
		}
		if t.Failed() {
			t.Logf("the last output of %s:\n%s", command[0], p.out.tail())
		}
	})
	return p
}

// Pause stops the process until it is killed. What is sent to it stays unread.
func (p *Process) Pause() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGSTOP) // it may have ended by itself
}

// Kill kills the process and its children, and waits for its end.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may have ended by itself
	<-p.exited
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Ready waits for the next line that reports a ready endpoint: a JSON object with kind
// "ready" and a url.
func (p *Process) Ready(t testing.TB) []byte {
	t.Helper()
	select {
	case line := <-p.out.ready:
		return line
	case <-p.exited:
		t.Fatalf("%s ended before it was ready: %s", p.cmd.Path, p.cmd.ProcessState)
	case <-time.After(readyLimit):
		t.Fatalf("%s was not ready within %s", p.cmd.Path, readyLimit)
	}
	return nil
}

// output keeps the end of a process's output and finds the ready lines in it. One
// goroutine of os/exec writes, and tests read the tail.
type output struct {
	ready chan []byte // ready lines; lines that do not fit are dropped

	mu   sync.Mutex
	line []byte
	kept []byte
}

func (o *output) Write(p []byte) (int, error) {
	const keep = 8 << 10
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, p...)
	o.kept = o.kept[max(0, len(o.kept)-keep):]
	o.line = append(o.line, p...)
	for {
		line, rest, whole := bytes.Cut(o.line, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		o.look(line)
		o.line = rest
	}
}

func (o *output) look(line []byte) {
	var event struct{ Kind, URL string }
	if json.Unmarshal(line, &event) != nil || event.Kind != "ready" || event.URL == "" {
		return
	}
	select {
	case o.ready <- bytes.Clone(line):
	default:
	}
}

func (o *output) tail() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.kept)
}
