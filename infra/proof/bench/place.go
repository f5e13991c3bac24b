package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// place holds the folders of the benchmark: the built programs, the installed programs,
// and scratch files.
type place struct {
	root     string    // folder of the repository
	programs string    // folder of the built programs of Dormouse
	tools    string    // .tools/bench
	scratch  string    // folder that is removed when the run ends
	self     string    // the file of this program, which is also the reaper
	group    *cpuGroup // nil if none could be made
}

func (p place) bin(name string) string { return filepath.Join(p.programs, name) }

// echo returns the path of the built echo server.
func (p place) echo() string { return filepath.Join(p.tools, "echo") }

// node returns the path of a file of an installed npm package.
func (p place) node(path ...string) string {
	return filepath.Join(append([]string{p.tools, "node", "node_modules"}, path...)...)
}

// workerd returns the path of the program itself: npm links only a script that starts it.
func (p place) workerd() string {
	arch := map[string]string{"amd64": "64", "arm64": "arm64"}[runtime.GOARCH]
	return p.node("@cloudflare", "workerd-"+runtime.GOOS+"-"+arch, "bin", "workerd")
}

// folder makes an empty folder in scratch.
func (p place) folder(name string) (string, error) { return os.MkdirTemp(p.scratch, name+"-") }

// running is a command that was started below a parent process of its own, the reaper; see reap.
type running struct {
	cmd    *exec.Cmd
	output *tail
	ended  chan struct{}
	group  *cpuGroup
}

// run starts a command. The command sees the environment of the benchmark and the
// further variables. If lines is not nil, it gets each line of stdout.
func (p place) run(command, variables []string, lines func(string)) (*running, error) {
	r := &running{output: &tail{lines: lines}, ended: make(chan struct{}), group: p.group}
	r.cmd = exec.Command(p.self, append([]string{"reap"}, command...)...) //nolint:noctx // ended by stop
	r.cmd.Env = append(os.Environ(), variables...)
	r.cmd.Dir = p.scratch
	r.cmd.Stdout, r.cmd.Stderr = r.output, &tail{into: r.output}
	r.cmd.WaitDelay = 2 * time.Second
	setGroup(r.cmd)
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait() // how it ended is of no interest
	}()
	return r, nil
}

// pid returns the process id of the reaper.
func (r *running) pid() int { return r.cmd.Process.Pid }

// cpu returns the CPU time that all processes have used. The kernel counts it for the cgroup.
// Without a cgroup, it is added up from /proc, which may be wrong by a tick for each process.
func (r *running) cpu() (time.Duration, error) {
	if r.group != nil {
		return r.group.used()
	}
	cpu, _, err := treeCPU(r.pid())
	return cpu, err
}

// kill ends all processes at once with SIGKILL, like a loss of power.
func (r *running) kill() {
	r.each(syscall.SIGKILL)
	r.wait(10 * time.Second)
}

// stop asks all processes to end, and kills those that have not ended after some time.
func (r *running) stop() {
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // the reaper passes the signal on
	if r.wait(15 * time.Second) {
		return
	}
	r.kill()
}

// each signals all processes below the reaper, up to ten times until there are none: some processes
// may start while others end.
func (r *running) each(s syscall.Signal) {
	for range 10 {
		all, err := below(r.pid())
		if err != nil || len(all) < 2 {
			return
		}
		for _, m := range all {
			if m.pid != r.pid() {
				_ = syscall.Kill(m.pid, s) // the process may have ended meanwhile
			}
		}
		if r.wait(200 * time.Millisecond) {
			return
		}
	}
}

func (r *running) wait(limit time.Duration) bool {
	select {
	case <-r.ended:
		return true
	case <-time.After(limit):
		return false
	}
}

// said returns the end of the command's output, for errors.
func (r *running) said() string { return r.output.String() }

// tail keeps the end of the text that was written to it, and passes on whole lines.
type tail struct {
	into  *tail // if not nil, it keeps the text, and this tail keeps nothing
	lines func(string)

	mu   sync.Mutex
	kept []byte
	line []byte
}

const tailBytes = 2 << 10

func (t *tail) Write(text []byte) (int, error) {
	if t.into != nil {
		t.into.keep(text)
		return len(text), nil
	}
	t.keep(text)
	if t.lines == nil {
		return len(text), nil
	}
	t.line = append(t.line, text...)
	for {
		line, rest, found := bytes.Cut(t.line, []byte("\n"))
		if !found {
			return len(text), nil
		}
		t.lines(string(line))
		t.line = rest
	}
}

func (t *tail) keep(text []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, text...)
	t.kept = t.kept[max(0, len(t.kept)-tailBytes):]
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.kept))
}

// freePort returns a port that was free a moment ago.
func freePort(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// answers waits until a program listens at an address.
func (r *running) answers(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-r.ended:
			return fmt.Errorf("it ended: %s", r.said())
		case <-ctx.Done():
			return errors.Join(ctx.Err(), fmt.Errorf("it said: %s", r.said()))
		}
	}
}

// copyFiles copies files into a folder under their own names.
func copyFiles(folder string, files ...string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, file := range files {
		if err := copyFile(file, filepath.Join(folder, filepath.Base(file))); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
