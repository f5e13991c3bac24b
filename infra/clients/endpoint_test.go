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
	"strings"
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
	// urlVariable names an endpoint that runs already and hosts server-everything, as
	// http://HOST/everything/mcp; socketVariable is its URL for WebSocket clients.
	urlVariable    = "DORMOUSE_TEST_URL"
	socketVariable = "DORMOUSE_TEST_SOCKET_URL"
)

// urls are where an endpoint is, by transport.
type urls map[string]string

// dormouseTransports are those that Dormouse is tested over.
func dormouseTransports() []string { return []string{streamable, sse, webSocket} }

// dormouseURLs says where a server is for clients of each transport.
func dormouseURLs(mcp, socket string) urls {
	return urls{streamable: mcp, sse: strings.TrimSuffix(mcp, "/mcp") + "/sse", webSocket: socket}
}

// startDormouse returns the URLs of a Dormouse that hosts server-everything: of the one that
// DORMOUSE_TEST_URL names, else of one of our own on free ports with empty data.
func startDormouse(t *testing.T) urls {
	t.Helper()
	if url := os.Getenv(urlVariable); url != "" {
		return dormouseURLs(url, os.Getenv(socketVariable))
	}
	binary := filepath.Join(repoRoot(t), "bin", "dormouse")
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("%v; run make build first, or name a running endpoint in %s", err, urlVariable)
	}
	ready := start(t, nil, dormouseCommand(binary, t.TempDir(), serversFile(t))...)
	return dormouseURLs(ready.URL, ready.SocketURL)
}

// dormouseCommand is the one place that knows Dormouse's command line. Its output must hold a
// JSON line {"kind":"ready","url":URL,"socket_url":URL}.
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

// startReference returns the URL of server-everything's own server for a transport, which is
// Streamable HTTP or HTTP+SSE.
func startReference(t *testing.T, transport string) string {
	t.Helper()
	shim, err := filepath.Abs(filepath.Join("everything", "loopback.cjs"))
	if err != nil {
		t.Fatal(err)
	}
	mode := map[string]string{streamable: "streamableHttp", sse: "sse"}[transport]
	return start(t, []string{"PORT=0"}, tool(t, "node", nodeHelp), "--require", shim, everything(t), mode).URL
}

// ready is what an endpoint says once it serves.
type ready struct {
	Kind      string `json:"kind"`
	URL       string `json:"url"`
	SocketURL string `json:"socket_url"`
}

// start runs an endpoint until the test ends and returns its ready line. The endpoint
// gets a process group of its own, and what it leaves behind there is killed with it.
func start(t *testing.T, env []string, command ...string) ready {
	t.Helper()
	out := &endpointOutput{ready: make(chan ready, 1)}
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
	case line := <-out.ready:
		return line
	case <-exited:
		t.Fatalf("the endpoint ended before it was ready: %s", cmd.ProcessState)
	case <-time.After(readyLimit):
		t.Fatalf("the endpoint was not ready within %s", readyLimit)
	}
	return ready{}
}

// endpointOutput keeps the end of what a process prints and finds the ready line in it. One
// goroutine of os/exec writes, tests read the tail.
type endpointOutput struct {
	ready chan ready // holds one; a second ready line is dropped

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
	var event ready
	if json.Unmarshal(line, &event) != nil || event.Kind != "ready" || event.URL == "" {
		return
	}
	select {
	case o.ready <- event:
	default:
	}
}

func (o *endpointOutput) tail() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.kept)
}
