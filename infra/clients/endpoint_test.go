//go:build clients

package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// readyLimit bounds the time from start to the ready line.
	readyLimit = time.Minute
	// stopLimit is how long a stopped endpoint may take before it is killed.
	stopLimit = 10 * time.Second
	// urlVariable names an endpoint that runs already and hosts server-everything.
	urlVariable = "DORMOUSE_TEST_URL"
)

// startDormouse returns the URL of a Dormouse that hosts server-everything: the one that
// DORMOUSE_TEST_URL names, else one of our own on a free port with empty data.
func startDormouse(t *testing.T) string {
	t.Helper()
	if url := os.Getenv(urlVariable); url != "" {
		return url
	}
	binary := filepath.Join(repoRoot(t), "bin", "dormouse")
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("%v; run make build first, or name a running endpoint in %s", err, urlVariable)
	}
	return start(t, nil, dormouseCommand(binary, t.TempDir(), serversFile(t))...)
}

// dormouseCommand is the one place that knows Dormouse's command line. Its output must hold a
// JSON line {"kind":"ready","url":URL}.
func dormouseCommand(binary, data, servers string) []string {
	return []string{binary, "run", "--listen", "127.0.0.1:0", "--json", "--data", data, "--servers", servers}
}

// serversFile hosts the pinned server-everything over stdio.
func serversFile(t *testing.T) string {
	t.Helper()
	servers, err := json.Marshal(map[string]any{"mcpServers": map[string]any{
		"everything": map[string]any{
			"command": tool(t, "node", nodeHelp),
			"args":    []string{everything(t), "stdio"},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "servers.json")
	if err := os.WriteFile(path, servers, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// startReference returns the URL of server-everything's own Streamable HTTP server.
func startReference(t *testing.T) string {
	t.Helper()
	shim, err := filepath.Abs(filepath.Join("everything", "loopback.cjs"))
	if err != nil {
		t.Fatal(err)
	}
	return start(t, []string{"PORT=0"}, tool(t, "node", nodeHelp), "--require", shim, everything(t), "streamableHttp")
}

// start runs an endpoint until the test ends and returns the URL of its ready line. The endpoint
// gets a process group of its own, and what it leaves behind there is killed with it.
func start(t *testing.T, env []string, command ...string) string {
	t.Helper()
	out := &endpointOutput{ready: make(chan string, 1)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopLimit
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // we stop it ourselves; how it ends is not what is tested
	}()
	t.Cleanup(func() {
		cancel()
		<-exited
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Errorf("kill what the endpoint left behind: %v", err)
		}
		if t.Failed() {
			t.Logf("the endpoint's last output:\n%s", out.tail())
		}
	})
	select {
	case url := <-out.ready:
		return url
	case <-exited:
		t.Fatalf("the endpoint ended before it was ready: %s", cmd.ProcessState)
	case <-time.After(readyLimit):
		t.Fatalf("the endpoint was not ready within %s", readyLimit)
	}
	return ""
}

// endpointOutput keeps the end of what a process prints and finds the ready line in it. One
// goroutine of os/exec writes, tests read the tail.
type endpointOutput struct {
	ready chan string // holds one URL; a second ready line is dropped

	mu   sync.Mutex
	line []byte
	kept []byte
}

func (o *endpointOutput) Write(p []byte) (int, error) {
	const keep = 8 << 10
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, p...)
	o.kept = o.kept[max(0, len(o.kept)-keep):]
	o.line = append(o.line, p...)
	for {
		end := bytes.IndexByte(o.line, '\n')
		if end < 0 {
			return len(p), nil
		}
		o.look(o.line[:end])
		o.line = o.line[end+1:]
	}
}

func (o *endpointOutput) look(line []byte) {
	var event struct{ Kind, URL string }
	if json.Unmarshal(line, &event) != nil || event.Kind != "ready" || event.URL == "" {
		return
	}
	select {
	case o.ready <- event.URL:
	default:
	}
}

func (o *endpointOutput) tail() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.kept)
}
