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
)

const (
	drainWait  = 500 * time.Millisecond // for output that is still in a pipe after the exit
	drainReads = 64                     // of it; together more than a pipe holds
)

// Grace is how long a server may take to exit.
type Grace struct {
	Stdin time.Duration // when its stdin ends
	Term  time.Duration // and then, when it is asked to by SIGTERM
}

// Command is what the operating system needs to start a process.
type Command struct {
	Path string
	Args []string // with the name of the program first
	Env  []string
	Dir  string // "" for the runner's

	// Start starts the command in a sandbox; nil is [exec.Cmd.Start].
	Start func(*exec.Cmd) error
	// Clear is called once, when the process and its group have ended, or could not be
	// started. It ends what the process has left elsewhere. It may be nil.
	Clear func()
}

// Child is a running process that leads a group of its own, with its three pipes. It
// ends with everything in its group. The caller reads Stdout and Stderr to their end,
// and calls Release when the process has exited. All methods may be called by several
// goroutines.
type Child struct {
	cmd    *exec.Cmd
	pid    int
	since  time.Time
	kills  int // oomKills when it began
	grace  Grace
	clear  func() // ends what is left beside the group
	stdin  *os.File
	stdout *drain
	stderr *drain

	mu     sync.Mutex // held while the group is signaled
	reaped bool       // the pid may belong to somebody else from now on

	ending    sync.Once
	abandoned chan struct{} // closed when it was given its time to end and did not
	exited    chan struct{} // closed when the group is gone; then end is set
	end       Exit
}

// Exit is how a process ended; the zero Exit means nobody knows.
type Exit struct {
	Code   *int
	Signal string // such as SIGKILL
}

// String says how the process ended, as the end of a sentence.
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

// Start starts a process. Its error is that of the operating system, or of run.Start.
func Start(run Command, g Grace) (*Child, error) {
	c := &Child{grace: g, abandoned: make(chan struct{}), exited: make(chan struct{}), clear: func() {}}
	if run.Clear != nil {
		c.clear = run.Clear
	}
	c.cmd = &exec.Cmd{Path: run.Path, Args: run.Args, Env: run.Env, Dir: run.Dir, SysProcAttr: attributes()}
	// Pipes of our own, because Wait of those of exec.Cmd closes them with output
	// still in them.
	pipes, err := openPipes(3)
	if err != nil {
		return nil, fmt.Errorf("open pipes: %w", err)
	}
	in, out, diag := pipes[0], pipes[1], pipes[2]
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = in.r, out.w, diag.w
	start := c.cmd.Start
	if run.Start != nil {
		start = func() error { return run.Start(c.cmd) }
	}
	err = start()
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
	go c.wait()
	return c, nil
}

// PID is the process id. It is that of the group, too.
func (c *Child) PID() int { return c.pid }

// Since is when the process was started.
func (c *Child) Since() time.Time { return c.since }

// Stdin is where the process reads. Writing fails once CloseStdin or Terminate was
// called.
func (c *Child) Stdin() io.Writer { return c.stdin }

// Stdout is what the process writes. It ends soon after the process has exited, even if
// somebody else still holds the pipe.
func (c *Child) Stdout() io.Reader { return c.stdout }

// Stderr is like Stdout.
func (c *Child) Stderr() io.Reader { return c.stderr }

// Exited is closed when the process and its group are gone.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// Abandoned is closed when the process was told to end and did not exit within
// [Grace].Stdin.
func (c *Child) Abandoned() <-chan struct{} { return c.abandoned }

// Exit says how the process ended; ok is false while it runs.
func (c *Child) Exit() (e Exit, ok bool) {
	select {
	case <-c.exited:
		return c.end, true
	default:
		return Exit{}, false
	}
}

// KernelKilled reports whether the kernel has killed any process of this machine for
// want of memory since this one was started.
func (c *Child) KernelKilled() bool { return oomKills() > c.kills }

// wait notes the end of the process.
func (c *Child) wait() {
	c.reap()
	c.clear()
	c.end = exitOf(c.cmd.ProcessState)
	close(c.exited)
	// A process that left the group may hold the pipes open. Whoever reads them now
	// reads what is left and no more.
	c.stdout.expire()
	c.stderr.expire()
}

// killGroup kills what is left of the group. The caller has locked mu.
func (c *Child) killGroup() {
	// There is nothing to do about a group that is gone, or not ours to kill.
	_ = unix.Kill(-c.pid, unix.SIGKILL)
}

// signal reaches every process of the group.
func (c *Child) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		_ = unix.Kill(-c.pid, s) // gone already is as good
	}
}

// Terminate begins to end the process and returns at once: its stdin ends, then it
// gets SIGTERM, then SIGKILL (MCP 2025-11-25, basic/lifecycle, "Shutdown").
func (c *Child) Terminate() {
	c.ending.Do(func() {
		closeAll(c.stdin)
		go func() {
			if c.exits(c.grace.Stdin) {
				return
			}
			close(c.abandoned)
			c.signal(unix.SIGTERM)
			if !c.exits(c.grace.Term) {
				c.signal(unix.SIGKILL)
			}
		}()
	})
}

// Kill kills the group at once.
func (c *Child) Kill() { c.signal(unix.SIGKILL) }

// CloseStdin ends what the process reads.
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

// drain reads a pipe to its end. Once the process has exited, what the pipe holds
// is read, but nobody is waited for.
type drain struct {
	f      *os.File
	exited <-chan struct{}
	left   int // reads after the exit
}

// Read returns io.EOF also when there is nothing more to come after the exit.
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
			return d.Read(p) // exited just now: see what is there before giving up
		}
		err = io.EOF
	}
	return n, err
}

func (d *drain) expire() {
	// Fails only on a closed file, which does not block a reader.
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
