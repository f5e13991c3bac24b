//go:build image && engine

package image_test

import (
	"archive/tar"
	"bufio"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// programs of this machine are the base image of the container tests: no other image is
// within reach.
var programs = []string{"/bin/sh", "curl", "node"}

// machineBase pushes a base image for this machine's processor: programs with their shared
// libraries, an empty /tmp, and no user but root.
func (r *rig) machineBase(reference string) {
	r.t.Helper()
	path := filepath.Join(r.folder, "base.tar")
	f, err := os.Create(path)
	commontest.OK(r.t, err)
	w, has := tar.NewWriter(f), map[string]bool{}
	add := func(name string, head tar.Header, data []byte) {
		if has[name] {
			return
		}
		has[name] = true
		head.Name, head.Size = strings.TrimPrefix(name, "/"), int64(len(data))
		err := w.WriteHeader(&head)
		if _, err2 := w.Write(data); err != nil || err2 != nil {
			r.t.Fatal(err, err2)
		}
	}
	add("tmp", tar.Header{Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	add("etc/passwd", tar.Header{Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	for _, name := range programs {
		path, err := exec.LookPath(name)
		commontest.OK(r.t, err)
		libraries, err := exec.CommandContext(r.t.Context(), "ldd", path).Output()
		commontest.OK(r.t, err)
		for _, file := range append(regexp.MustCompile(`/\S+`).FindAllString(string(libraries), -1), path) {
			data, err := os.ReadFile(file)
			commontest.OK(r.t, err)
			add(file, tar.Header{Typeflag: tar.TypeReg, Mode: 0o755}, data)
		}
	}
	commontest.OK(r.t, w.Close())
	commontest.OK(r.t, f.Close())
	r.do("append", "--oci-empty-base", "--new_layer", path, "--new_tag", reference)
	r.do("mutate", "--set-platform", "linux/"+runtime.GOARCH, "--env", "PATH=/usr/local/bin:/usr/bin:/bin", "--tag", reference, reference)
}

// docker runs a command of Docker and returns what it printed.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "docker", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// healthy waits until Docker says that a container is healthy, by the image's own check.
func healthy(t *testing.T, container string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker", "events", "--since", "0", "--filter", "container="+container, "--format", "{{.Action}}")
	events, err := cmd.StdoutPipe()
	commontest.OK(t, err)
	commontest.OK(t, cmd.Start())
	defer func() { cancel(); _ = cmd.Wait() }()
	for lines := bufio.NewScanner(events); lines.Scan(); {
		switch lines.Text() {
		case "health_status: healthy":
			return
		case "die":
			t.Fatalf("the container ended: %s", docker(t, "logs", container))
		}
	}
	t.Fatalf("the container did not become healthy: %s", docker(t, "logs", container))
}

// keyed adds a key to each request.
type keyed struct{ key string }

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+k.key)
	return http.DefaultTransport.RoundTrip(r)
}

// The image, pulled and started by Docker with two folders and no flag, is healthy by
// its own check. It hosts a stdio server for holders of a key, as a user without a home, on
// a root filesystem that cannot be written. A session goes on in another container with the
// same data.
func TestAContainerHostsAServerAndItsSessionsSurvive(t *testing.T) {
	r := newRig(t)
	r.machineBase(r.host + "/base:real")
	program, err := filepath.Abs("../../bin/dormouse")
	commontest.OK(t, err)
	image, err := r.machine("base:real", r.host+"/machine:1", "linux/"+runtime.GOARCH+"="+program)
	commontest.OK(t, err)
	docker(t, "pull", image)
	config := t.TempDir()
	for name, text := range map[string]string{
		"servers.json": `{"mcpServers": {"echo": {"command": "node", "args": ["/config/echo.js"]}}}`,
		"echo.js": `require("readline").createInterface({input: process.stdin}).on("line", line => {
  const m = JSON.parse(line)
  const result = {
    "initialize": () => ({protocolVersion: m.params.protocolVersion, capabilities: {tools: {}}, serverInfo: {name: "echo", version: "1"}}),
    "tools/list": () => ({tools: [{name: "uid", inputSchema: {type: "object"}}]}),
    "tools/call": () => ({content: [{type: "text", text: "uid " + process.getuid()}]}),
  }[m.method]
  if (m.id !== undefined) console.log(JSON.stringify({jsonrpc: "2.0", id: m.id, result: result ? result() : {}}))
}).on("close", () => process.exit())`,
	} {
		if err := os.WriteFile(filepath.Join(config, name), []byte(text), 0o644); err != nil { //nolint:gosec // another user reads it
			t.Fatal(err)
		}
	}
	if err := os.Chmod(config, 0o755); err != nil { //nolint:gosec // another user reads it
		t.Fatal(err)
	}
	volume := docker(t, "volume", "create")
	start := func(name string) {
		docker(t, "run", "--detach", "--init", "--name", name, "--read-only", "--cap-drop", "ALL", "--tmpfs", "/tmp", "--network", "host", "--volume", config+":/config:ro", "--volume", volume+":/data", image)
		healthy(t, name)
	}
	start("first")
	key := docker(t, "exec", "first", "dormouse", "keys", "create", "ada", "--server", "echo", "--json")
	found := regexp.MustCompile(`"key": "([^"]+)"`).FindStringSubmatch(key)
	if found == nil {
		t.Fatalf("the output has no key: %s", key)
	}
	endpoint := "http://127.0.0.1:8787/echo/mcp"
	if res, err := http.Post(endpoint, "application/json", strings.NewReader("{}")); err != nil || res.StatusCode != http.StatusUnauthorized { //nolint:noctx,bodyclose // the test ends soon
		t.Errorf("without a key: %v, %v", res, err)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: endpoint, HTTPClient: &http.Client{Transport: keyed{found[1]}}, DisableStandaloneSSE: true}, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, docker(t, "logs", "first"))
	}
	call := func() {
		t.Helper()
		result, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "uid"})
		if err != nil || result.IsError || result.Content[0].(*mcp.TextContent).Text != "uid 10001" {
			t.Fatalf("the tool said %+v, %v\n%s", result, err, docker(t, "logs", "first"))
		}
	}
	call()
	docker(t, "rm", "--force", "first")
	start("second")
	call()
	_ = s.Close()
	docker(t, "stop", "second")
	if code := docker(t, "inspect", "--format", "{{.State.ExitCode}}", "second"); code != "0" {
		t.Errorf("after docker stop the exit code is %s:\n%s", code, docker(t, "logs", "second"))
	}
}
