package box

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

// grace is how long a server may take to exit.
type grace struct {
	stdin time.Duration // when its stdin ends
	term  time.Duration // and then, when it is asked to by SIGTERM
}

// child is an operating system process that leads a group of its own, with its
// three pipes. It ends with everything in its group, whoever of them exits last.
type child struct {
	cmd    *exec.Cmd
	pid    int
	since  time.Time
	kills  int // oomKills when it began
	grace  grace
	clear  func() // ends what is left beside the group
	stdin  *os.File
	stdout *drain
	stderr *drain

	mu     sync.Mutex // held while the group is signaled
	reaped bool       // the pid may belong to somebody else from now on

	ending    sync.Once
	abandoned chan struct{} // closed when it was given its time to end and did not
	exited    chan struct{} // closed when the group is gone; then end is set
	end       exit
}

// exit is how a process ended; the zero exit means nobody knows.
type exit struct {
	code   *int
	signal string // such as SIGKILL
}

func (e exit) String() string {
	switch {
	case e.code != nil:
		return fmt.Sprintf("exited with code %d", *e.code)
	case e.signal != "":
		return "was killed by " + e.signal
	default:
		return "exited"
	}
}

// startChild starts a process. Who started it reads stdout and stderr to their end.
func startChild(l launch, g grace) (*child, error) {
	c := &child{grace: g, abandoned: make(chan struct{}), exited: make(chan struct{}), clear: func() {}}
	if l.clear != nil {
		c.clear = l.clear
	}
	c.cmd = &exec.Cmd{Path: l.path, Args: l.argv, Env: l.env, Dir: l.dir, SysProcAttr: attributes()}
	// Pipes of our own, because Wait of those of exec.Cmd closes them with output
	// still in them.
	pipes, err := openPipes(3)
	if err != nil {
		return nil, fmt.Errorf("open pipes: %w", err)
	}
	in, out, diag := pipes[0], pipes[1], pipes[2]
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = in.r, out.w, diag.w
	start := c.cmd.Start
	if l.start != nil {
		start = func() error { return l.start(c.cmd) }
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

// wait notes the end of the process.
func (c *child) wait() {
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
func (c *child) killGroup() {
	// There is nothing to do about a group that is gone, or not ours to kill.
	_ = unix.Kill(-c.pid, unix.SIGKILL)
}

// signal reaches every process of the group.
func (c *child) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		_ = unix.Kill(-c.pid, s) // gone already is as good
	}
}

// terminate begins to end the process and returns at once: its stdin ends, then it
// gets SIGTERM, then SIGKILL (MCP 2025-11-25, basic/lifecycle, "Shutdown").
func (c *child) terminate() {
	c.ending.Do(func() {
		closeAll(c.stdin)
		go func() {
			if c.exits(c.grace.stdin) {
				return
			}
			close(c.abandoned)
			c.signal(unix.SIGTERM)
			if !c.exits(c.grace.term) {
				c.signal(unix.SIGKILL)
			}
		}()
	})
}

// wasAbandoned says whether the process was given its time to end and did not.
func (c *child) wasAbandoned() bool {
	select {
	case <-c.abandoned:
		return true
	default:
		return false
	}
}

func (c *child) exits(within time.Duration) bool {
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-c.exited:
		return true
	case <-t.C:
		return false
	}
}

// release closes the pipes. The process must have exited.
func (c *child) release() { closeAll(c.stdin, c.stdout.f, c.stderr.f) }

func exitOf(s *os.ProcessState) exit {
	if s == nil {
		return exit{}
	}
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return exit{signal: unix.SignalName(w.Signal())}
	}
	code := s.ExitCode()
	return exit{code: &code}
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
