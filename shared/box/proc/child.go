package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
)

const (
	drainWait  = 500 * time.Millisecond // how long output is read that is still in a pipe after the exit
	drainReads = 64                     // most reads of that output; together they read more than a pipe holds
)

// Grace is the time that a process has to exit by itself.
type Grace struct {
	Stdin time.Duration // after its stdin ends
	Term  time.Duration // after SIGTERM, which follows
}

// Command describes a process to start.
type Command struct {
	Path string
	Args []string // with the name of the program first
	Env  []string
	Dir  string // "" for the runner's

	// Start starts the command in a sandbox; nil is [exec.Cmd.Start].
	Start func(*exec.Cmd) error
	// Clear is called once, when the process and its group have ended, or could not be
	// started. It ends processes that have left the group. It may be nil.
	Clear func()

	Extra []*os.File // files that the process has as descriptors from 3 on; the caller closes them. A Command with Start has none

	Guard *guard.Guard // catches the panics of the goroutines that wait for the process; nil for none
	Apart bool         // the process leads a session of its own, and has no terminal
}

// Child is a running process that leads a process group of its own, and its three pipes.
// Everything in the group ends with it. The caller reads Stdout and Stderr to their end,
// and calls Release when the process has exited. All methods are safe for concurrent use.
type Child struct {
	cmd    *exec.Cmd
	pid    int
	since  time.Time
	kills  int // what oomKills returned when the process was started
	grace  Grace
	clear  func() // see [Command].Clear
	guard  *guard.Guard
	stdin  *os.File
	stdout *drain
	stderr *drain

	mu     sync.Mutex // held while the group is signaled
	reaped bool       // another process may have the pid from now on

	ending    sync.Once
	abandoned chan struct{} // closed when Grace.Stdin has passed without an exit
	exited    chan struct{} // closed when the group is gone; then end is set
	end       Exit
}

// Exit is how a process ended. The zero Exit means that this is not known.
type Exit struct {
	Code   *int
	Signal string // such as SIGKILL
}

// String describes how the process ended, as the last words of a sentence.
func (e Exit) String() string {
	switch {
	case e.Code != nil:
		return fmt.Sprintf("exited with code %d", *e.Code)
	case e.Signal != "":
		return "was killed by " + e.Signal
	default:
		return "exited"
	}
}

// Start starts a process. Its error is the error of the operating system, or of
// run.Start. If the Go runtime has only one processor, Start adds another one for the time
// of the start.
func Start(run Command, g Grace) (*Child, error) {
	c := &Child{grace: g, abandoned: make(chan struct{}), exited: make(chan struct{}), clear: func() {}, guard: run.Guard}
	if run.Clear != nil {
		c.clear = run.Clear
	}
	c.cmd = &exec.Cmd{Path: run.Path, Args: run.Args, Env: run.Env, Dir: run.Dir, SysProcAttr: attributes(run.Apart)}
	// exec.Cmd would make pipes that its Wait closes with output still in them.
	pipes, err := openPipes(3)
	if err != nil {
		return nil, fmt.Errorf("open pipes: %w", err)
	}
	in, out, diag := pipes[0], pipes[1], pipes[2]
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr, c.cmd.ExtraFiles = in.r, out.w, diag.w, run.Extra
	start := c.cmd.Start
	if run.Start != nil {
		start = func() error { return run.Start(c.cmd) }
	}
	release := spares.take()
	err = children.start(c.cmd, start)
	release()
	closeAll(in.r, out.w, diag.w)
	if err != nil {
		c.clear()
		closeAll(in.w, out.r, diag.r)
		return nil, err
	}
	c.pid, c.since, c.kills = c.cmd.Process.Pid, time.Now(), oomKills()
	c.stdin = in.w
	c.stdout = &drain{f: out.r, exited: c.exited, left: drainReads}
	c.stderr = &drain{f: diag.r, exited: c.exited, left: drainReads}
	c.guard.Go(c.wait)
	return c, nil
}

// PID returns the process id, which is also the id of the group.
func (c *Child) PID() int { return c.pid }

// Since returns when the process was started.
func (c *Child) Since() time.Time { return c.since }

// Stdin returns the writer to the process's stdin. Writing fails once CloseStdin or
// Terminate was called.
func (c *Child) Stdin() io.Writer { return c.stdin }

// Stdout returns the reader of the process's stdout. It ends soon after the process has
// exited, even if another process still holds the pipe.
func (c *Child) Stdout() io.Reader { return c.stdout }

// Stderr is like Stdout.
func (c *Child) Stderr() io.Reader { return c.stderr }

// Exited returns a channel that is closed when the process and its group are gone.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// Abandoned returns a channel that is closed when a process that was told to end has not
// exited within [Grace].Stdin.
func (c *Child) Abandoned() <-chan struct{} { return c.abandoned }

// Exit returns how the process ended; ok is false while it runs.
func (c *Child) Exit() (e Exit, ok bool) {
	select {
	case <-c.exited:
		return c.end, true
	default:
		return Exit{}, false
	}
}

// KernelKilled reports whether the kernel has killed any process on this machine for lack
// of memory since this process was started.
func (c *Child) KernelKilled() bool { return oomKills() > c.kills }

// wait waits for the process and records its end.
func (c *Child) wait() {
	c.reap()
	children.ended(c.pid)
	c.clear()
	c.end = exitOf(c.cmd.ProcessState)
	close(c.exited)
	// A process that left the group may hold the pipes open. Readers now get the rest of
	// the output, and then the end.
	c.stdout.expire()
	c.stderr.expire()
}

// killGroup kills the rest of the group. The caller holds mu.
func (c *Child) killGroup() {
	// An error means that the group is gone, or may not be killed.
	_ = unix.Kill(-c.pid, unix.SIGKILL)
}

// signal sends a signal to every process of the group.
func (c *Child) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		_ = unix.Kill(-c.pid, s) // an error means that it is gone
	}
}

// Terminate begins to end the process and returns at once. It closes stdin, sends
// SIGTERM to the group after Grace.Stdin, and SIGKILL after Grace.Term (MCP 2025-11-25,
// basic/lifecycle, "Shutdown").
func (c *Child) Terminate() {
	c.ending.Do(func() {
		closeAll(c.stdin)
		c.guard.Go(func() {
			if c.exits(c.grace.Stdin) {
				return
			}
			close(c.abandoned)
			c.signal(unix.SIGTERM)
			if !c.exits(c.grace.Term) {
				c.signal(unix.SIGKILL)
			}
		})
	})
}

// Kill kills the group at once.
func (c *Child) Kill() { c.signal(unix.SIGKILL) }

// Unread returns how many bytes in the stdin of a process that ends by itself will never be
// read. It waits a moment for the end. ok is false if this is not certain: a program may
// still read, or stdin was closed.
func (c *Child) Unread() (n int, ok bool) { return unread(c.stdin) }

// Interrupt ends a write to Stdin that waits for the process to read. Later writes fail, too.
func (c *Child) Interrupt() { _ = c.stdin.SetWriteDeadline(time.Unix(1, 0)) }

// Reread opens the other end of the stdin of a running process. take returns what the process
// has not read; it is called once, when the process has ended.
func (c *Child) Reread() (take func() ([]byte, error), err error) { return reread(c.stdin) }

// CloseStdin ends the stdin of the process.
func (c *Child) CloseStdin() { closeAll(c.stdin) }

func (c *Child) exits(within time.Duration) bool {
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-c.exited:
		return true
	case <-t.C:
		return false
	}
}

// Release closes the pipes. The process must have exited.
func (c *Child) Release() { closeAll(c.stdin, c.stdout.f, c.stderr.f) }

func exitOf(s *os.ProcessState) Exit {
	if s == nil {
		return Exit{}
	}
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return Exit{Signal: unix.SignalName(w.Signal())}
	}
	code := s.ExitCode()
	return Exit{Code: &code}
}

// drain reads a pipe to its end. After the process has exited, drain reads only what the
// pipe holds, and does not wait for other writers.
type drain struct {
	f      *os.File
	exited <-chan struct{}
	left   int // reads after the exit
}

// Read also returns io.EOF when nothing more comes after the exit.
func (d *drain) Read(p []byte) (int, error) {
	over := false
	select {
	case <-d.exited:
		if d.left == 0 {
			return 0, io.EOF
		}
		over = true
		d.left--
		d.expire()
	default:
	}
	n, err := d.f.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if !over {
			return d.Read(p) // exited while this waited: read what is in the pipe before giving up
		}
		err = io.EOF
	}
	return n, err
}

func (d *drain) expire() {
	// This fails only if the file is closed, and then no reader blocks.
	_ = d.f.SetReadDeadline(time.Now().Add(drainWait))
}

type pipe struct{ r, w *os.File }

func openPipes(n int) ([]pipe, error) {
	var pipes []pipe
	for range n {
		r, w, err := os.Pipe()
		if err != nil {
			for _, p := range pipes {
				closeAll(p.r, p.w)
			}
			return nil, err
		}
		pipes = append(pipes, pipe{r: r, w: w})
	}
	return pipes, nil
}

// closeAll closes pipes, of which some may be closed already.
func closeAll(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
