//go:build conformance

package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// readyLimit bounds the time from the start of an endpoint until it serves.
	readyLimit = time.Minute
	// stopLimit is how long a stopped endpoint may take before it is killed.
	stopLimit = 10 * time.Second
)

// server is an entry of the servers file.
type server struct {
	Command string   `json:"command"`
	Args    []string `json:"args,omitempty"`
}

// startDormouse hosts servers on a free port, with empty data, and returns their URLs.
func startDormouse(t *testing.T, servers map[string]server) map[string]string {
	t.Helper()
	binary := filepath.Join(repoRoot(t), "bin", "dormouse")
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("%v; run make build first", err)
	}
	file, err := json.Marshal(map[string]any{"mcpServers": servers})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "servers.json")
	writeFile(t, path, file)
	p := start(t, binary, "run", "--listen", "127.0.0.1:0", "--json", "--data", t.TempDir(), "--servers", path)
	urls := map[string]string{}
	timeout := time.After(readyLimit)
	for len(urls) < len(servers) {
		select {
		case line := <-p.out.ready:
			urls[line.Name] = line.URL
		case <-p.exited:
			t.Fatalf("dormouse ended before it was ready: %s", p.cmd.ProcessState)
		case <-timeout:
			t.Fatalf("dormouse was not ready within %s", readyLimit)
		}
	}
	return urls
}

// startDirectly starts an everything-server's own HTTP server and returns its URL.
func startDirectly(t *testing.T, binary string, args ...string) string {
	t.Helper()
	address := freeAddress(t)
	p := start(t, append([]string{binary, "-http", address}, args...)...)
	// It says nothing when it serves.
	for deadline := time.Now().Add(readyLimit); ; {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = conn.Close() // nothing was said on it
			return "http://" + address + "/"
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s was not ready within %s: %v", binary, readyLimit, err)
		}
		select {
		case <-p.exited:
			t.Fatalf("%s ended before it was ready: %s", binary, p.cmd.ProcessState)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

// process is a started endpoint.
type process struct {
	cmd    *exec.Cmd
	out    *output
	exited chan struct{}
}

// start runs a command until the test ends. It gets a process group of its own, and what it leaves
// behind there is killed with it.
func start(t *testing.T, command ...string) process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p := process{
		cmd:    exec.CommandContext(ctx, command[0], command[1:]...),
		out:    &output{ready: make(chan ready, 16)},
		exited: make(chan struct{}),
	}
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
		_ = p.cmd.Wait() // we stop it ourselves; how it ends is not what is tested
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

// ready is what Dormouse prints for each server once it serves.
type ready struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	URL  string `json:"url"`
}

// output keeps the end of what a process prints and finds the ready lines in it. One goroutine of
// os/exec writes, tests read the tail.
type output struct {
	ready chan ready // what does not fit is dropped

	mu   sync.Mutex
	line []byte
	kept []byte
}

func (o *output) Write(p []byte) (int, error) {
	const keep = 4 << 10
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
	var event ready
	if json.Unmarshal(line, &event) != nil || event.Kind != "ready" || event.URL == "" {
		return
	}
	select {
	case o.ready <- event:
	default:
	}
}

func (o *output) tail() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.kept)
}
