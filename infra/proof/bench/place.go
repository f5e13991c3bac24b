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

// place is where the benchmark works: the built programs, what is installed, and scratch.
type place struct {
	root     string // of the repository
	programs string // folder of the built programs of Dormouse
	tools    string // .tools/bench
	scratch  string // gone when the run ends
	self     string // this program, for reap
}

func (p place) bin(name string) string { return filepath.Join(p.programs, name) }

// echo is the built echo server.
func (p place) echo() string { return filepath.Join(p.tools, "echo") }

// node is a file of an installed npm package.
func (p place) node(path ...string) string {
	return filepath.Join(append([]string{p.tools, "node", "node_modules"}, path...)...)
}

// workerd is the program itself: what npm links is a script that starts it.
func (p place) workerd() string {
	arch := map[string]string{"amd64": "64", "arm64": "arm64"}[runtime.GOARCH]
	return p.node("@cloudflare", "workerd-"+runtime.GOOS+"-"+arch, "bin", "workerd")
}

func (p place) python(peer, program string) string {
	return filepath.Join(p.tools, peer, "bin", program)
}

// folder makes an empty folder in scratch.
func (p place) folder(name string) (string, error) { return os.MkdirTemp(p.scratch, name+"-") }

// running is a command that was started below a reaper of its own.
type running struct {
	cmd    *exec.Cmd
	output *tail
	ended  chan struct{}
}

// run starts a command. It sees the environment of the benchmark and more. lines, if it is not nil,
// is called with each line of its stdout.
func (p place) run(command, more []string, lines func(string)) (*running, error) {
	r := &running{output: &tail{lines: lines}, ended: make(chan struct{})}
	r.cmd = exec.Command(p.self, append([]string{"reap"}, command...)...) //nolint:noctx // ended by stop
	r.cmd.Env = append(os.Environ(), more...)
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

// pid is that of the reaper.
func (r *running) pid() int { return r.cmd.Process.Pid }

// kill ends everything at once with SIGKILL, as a machine that loses power.
func (r *running) kill() {
	r.each(syscall.SIGKILL)
	r.wait(10 * time.Second)
}

// stop asks everything to end, and kills what has not after a while.
func (r *running) stop() {
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // to the reaper, which hands it on
	if r.wait(15 * time.Second) {
		return
	}
	r.kill()
}

// each signals all below the reaper, as long as there are any: some are started while others end.
func (r *running) each(s syscall.Signal) {
	for range 10 {
		all, err := below(r.pid())
		if err != nil || len(all) < 2 {
			return
		}
		for _, m := range all {
			if m.pid != r.pid() {
				_ = syscall.Kill(m.pid, s) // it may have ended meanwhile
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

// said is the end of what the command wrote, for errors.
func (r *running) said() string { return r.output.String() }

// tail keeps the last of what was written, and hands on lines.
type tail struct {
	into  *tail // another one that keeps it instead
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

// freePort is one that nobody listened on a moment ago.
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

// answers waits until something listens at an address.
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
