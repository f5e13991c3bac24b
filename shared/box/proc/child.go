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
	drainWait  = 500 * time.Millisecond // how long output is read after the exit of the process
	drainReads = 64                     // the most reads after the exit; together they read more than a pipe can contain
)

// Grace is how long a process may take to exit, step by step.
type Grace struct {
	Stdin time.Duration // after its stdin was closed
	Term  time.Duration // after the SIGTERM that follows
}

// Command describes a process to start.
type Command struct {
	Path string
	Args []string // the first is the name of the program
	Env  []string
	Dir  string // the working directory, "" for that of this program

	// Start starts the command in a sandbox. If Start is nil, [exec.Cmd.Start] is used.
	Start func(*exec.Cmd) error
	// Clear is called once, after the process and its group have ended, or could not be started. A
	// Clear that is not nil must end processes that have left the group.
	Clear func()

	Extra []*os.File // files that the process gets as descriptors 3 and following; the caller closes them. Must be empty if Start is set

	// Guard catches the panics of the goroutines that wait for the process; nil for none. With a Guard
	// the process leads its own OS session, so it has no terminal.
	Guard *guard.Guard
}

// Child is a running process that leads its own process group, with its three pipes. When the
// process ends, its whole group is killed. The caller must read Stdout and Stderr to the end, and
// call Release after the exit of the process. All methods are safe for concurrent use.
type Child struct {
	cmd    *exec.Cmd
	pid    int
	since  time.Time
	kills  int // what oomKills returned when the process was started
	grace  Grace
	clear  func() // [Command].Clear, or a function that does nothing
	guard  *guard.Guard
	stdin  *os.File
	stdout *drain
	stderr *drain

	mu     sync.Mutex // held while a signal is sent to the group
	reaped bool       // the pid is free, so another process may get it

	ending    sync.Once
	abandoned chan struct{} // closed when the process has not exited within Grace.Stdin
	exited    chan struct{} // closed when the whole group has ended; end is set before
	end       Exit
}

// Exit says how a process ended. The zero Exit means that this is unknown.
type Exit struct {
	Code   *int
	Signal string // such as SIGKILL
}

// String describes the end of the process, as the predicate of a sentence.
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

// Start starts a process. The error is that of the operating system or of run.Start.
func Start(run Command, g Grace) (*Child, error) {
	c := &Child{grace: g, abandoned: make(chan struct{}), exited: make(chan struct{}), clear: func() {}, guard: run.Guard}
	if run.Clear != nil {
		c.clear = run.Clear
	}
	c.cmd = &exec.Cmd{Path: run.Path, Args: run.Args, Env: run.Env, Dir: run.Dir, SysProcAttr: attributes(run.Guard != nil)}
	// exec.Cmd would close pipes of its own in Wait, even if they still contain output.
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
	err = startChild(c.cmd, start)
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

// PID returns the process id, which is also the id of the process group.
func (c *Child) PID() int { return c.pid }

// Since returns the time at which the process was started.
func (c *Child) Since() time.Time { return c.since }

// Stdin returns a writer to the process's stdin. Writes fail after a call of CloseStdin or
// Terminate.
func (c *Child) Stdin() io.Writer { return c.stdin }

// Stdout returns a reader of the process's stdout. The output ends soon after the process has
// exited, even if another process still has the pipe open.
func (c *Child) Stdout() io.Reader { return c.stdout }

// Stderr returns a reader of the process's stderr.
func (c *Child) Stderr() io.Reader { return c.stderr }

// Exited returns a channel that is closed when the whole process group has ended.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// Abandoned returns a channel that is closed if, after Terminate, the process has not exited
// within [Grace].Stdin.
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

// KernelKilled reports whether the kernel has killed any process on this machine for lack of
// memory since this process was started.
func (c *Child) KernelKilled() bool { return oomKills() > c.kills }

func (c *Child) wait() {
	c.reap()
	children.Delete(c.pid)
	c.clear()
	c.end = exitOf(c.cmd.ProcessState)
	close(c.exited)
	// A process that has left the group may keep the pipes open. Readers now get the rest of the
	// output and then io.EOF.
	c.stdout.expire()
	c.stderr.expire()
}

// killGroup kills all processes that are left in the group. The caller must hold mu.
func (c *Child) killGroup() {
	// An error means that the group has ended, or may not be killed.
	_ = unix.Kill(-c.pid, unix.SIGKILL)
}

// signal sends a signal to every process of the group.
func (c *Child) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		_ = unix.Kill(-c.pid, s) // an error means that the group has ended
	}
}

// Terminate begins to end the process, and returns at once. Terminate closes stdin, sends SIGTERM
// to the group after Grace.Stdin, and SIGKILL after another Grace.Term (MCP 2025-11-25,
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

// Unread returns how many bytes in the process's stdin will never be read, after the process has
// exited by itself. Unread waits up to 50 ms for the exit. The result ok is false if a program may
// still read the bytes, or if stdin was closed.
func (c *Child) Unread() (n int, ok bool) { return unread(c.stdin) }

// Interrupt makes all writes to Stdin fail, even one that is blocked because the process does not
// read.
func (c *Child) Interrupt() { _ = c.stdin.SetWriteDeadline(time.Unix(1, 0)) }

// Reread opens the read end of the stdin of a running process. The function take returns what the
// process has not read. The caller must call take once, after the process has ended.
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

// drain reads a pipe to its end. After the exit of the process it reads only what is left in the
// pipe, and does not wait for other writers.
type drain struct {
	f      *os.File
	exited <-chan struct{}
	left   int // how many reads are allowed after the exit
}

// Read returns io.EOF also when the process has exited and the pipe is empty.
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
			return d.Read(p) // the process has exited during this read: read what is left in the pipe
		}
		err = io.EOF
	}
	return n, err
}

func (d *drain) expire() {
	// An error does not matter: the file is closed, and no read blocks.
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

// closeAll closes files, some of which may be closed already.
func closeAll(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
