//go:build samlocal

package stack_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/apigw"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/lambda"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

const (
	boxFunction = "BoxFunction512"
	boxImage    = "dormouse-box:samlocal"
	boxServer   = "/usr/local/bin/echo-server"
	samRegion   = "us-east-1"
)

// The commands of events/README.md do what it says, as somebody types them in a clone.
func TestTheCommandsOfTheReadmeUnderSAMLocal(t *testing.T) {
	text, err := os.ReadFile(root("events", "README.md"))
	commontest.OK(t, err)
	_, block, _ := strings.Cut(string(text), "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", block) //nolint:gosec // the commands are those of our own page
	cmd.Dir = root()
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(tools(t).python)+":"+os.Getenv("PATH"), "AWS_DEFAULT_REGION="+samRegion, "SAM_CLI_TELEMETRY=0", "MAKEFLAGS=")
	if os.Getenv("ENGINE_STARTED") != "" {
		cmd.Env = append(cmd.Env, "SAM_SKIP_PULL_IMAGE=1")
	}
	var says bytes.Buffer
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, &says)
	}
	if n := strings.Count(string(out), "401"); n != 2 {
		t.Errorf("%d of two invocations are refused with 401:\n%s\n%s", n, out, &says)
	}
}

// The host runs here, and its box in the container of sam local invoke. The box dials out
// to the host's relay, so the test shows that the function of the template, the runner and a
// server work together.
func TestAStdioServerAnswersThroughTheBoxFunctionUnderSAMLocal(t *testing.T) {
	buildBoxImage(t)
	ends := make(chan fleet.Status, 8)
	url := hostWithBoxesIn(t, func(event []byte, tenant string) {
		ends <- invokeBox(t, event, tenant)
	})
	client := mcp.NewClient(&mcp.Implementation{Name: "samlocal", Version: "1"}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url + "/echo/mcp", DisableStandaloneSSE: true}, nil)
	commontest.OK(t, err)
	defer func() { _ = s.Close() }()
	for _, text := range []string{"first", "second"} { // the second wakes the box again
		r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"message": text}})
		commontest.OK(t, err)
		if said, ok := r.Content[0].(*mcp.TextContent); !ok || said.Text != "Echo: "+text {
			t.Errorf("echo of %q is %q", text, said.Text)
		}
		select {
		case end := <-ends:
			if end.State != fleet.Stopped || end.ExitCode != 0 || end.Box == "" {
				t.Errorf("the box function answered %+v", end)
			}
		case <-ctx.Done():
			t.Fatal("the box function does not end, although its box is idle")
		}
	}
}

// invokeBox runs the function for boxes with sam local invoke, and returns its answer.
func invokeBox(t *testing.T, event []byte, tenant string) (end fleet.Status) {
	file := filepath.Join(t.TempDir(), "event.json")
	if err := os.WriteFile(file, event, 0o600); err != nil {
		t.Error(err)
		return end
	}
	args := []string{"-m", "samcli", "local", "invoke", boxFunction, "--template", "boxes.yaml", "--event", file, "--no-memory-limit", "--tenant-id", tenant}
	if os.Getenv("ENGINE_STARTED") != "" {
		args = append(args, "--skip-pull-image")
	}
	arch := strings.Replace(runtime.GOARCH, "amd64", "x86_64", 1) // this machine's, so that nothing needs emulation
	args = append(args, "--parameter-overrides", "Architecture="+arch, "Name=stack", "Image="+boxImage)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, tools(t).python, args...)
	cmd.Env = append(os.Environ(), "AWS_DEFAULT_REGION="+samRegion, "SAM_CLI_TELEMETRY=0", "AWS_EC2_METADATA_DISABLED=true")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil || json.Unmarshal(out, &end) != nil {
		t.Errorf("the box function: %v\n%s%s", err, out, &said)
	}
	return end
}

// buildBoxImage gives the engine an image with the runner, a server, and what SAM needs to
// add its emulator: this machine's sh, mv and chmod with their libraries.
func buildBoxImage(t *testing.T) {
	t.Helper()
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	add := func(h *tar.Header, content []byte) {
		h.Size = int64(len(content))
		err := w.WriteHeader(h)
		if err == nil {
			_, err = w.Write(content)
		}
		commontest.OK(t, err)
	}
	for _, dir := range []string{"tmp/", "var/rapid/"} {
		add(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	}
	for name := range strings.FieldsSeq(string(run(t, "sh", "-c", "for p in sh mv chmod; do command -v $p; ldd $(command -v $p) | grep -o '/[^ ]*'; done | sort -u"))) {
		content, err := os.ReadFile(name)
		commontest.OK(t, err)
		if !strings.Contains(name, ".so") {
			name = "/bin/" + filepath.Base(name)
		}
		add(&tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: 0o755}, content)
	}
	for name, from := range map[string][2]string{
		"usr/local/bin/dormouse-runner":    {".", "./infra/runner/cmd"},
		strings.TrimPrefix(boxServer, "/"): {"infra/proof", "./bench/echo"},
	} {
		out := filepath.Join(t.TempDir(), "program")
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags", "aws", "-o", out, from[1])
		cmd.Dir, cmd.Env = root(from[0]), append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		program, err := os.ReadFile(out)
		commontest.OK(t, err)
		add(&tar.Header{Name: name, Mode: 0o755}, program)
	}
	commontest.OK(t, w.Close())
	cmd := exec.CommandContext(t.Context(), "docker", "import", "--change", `ENTRYPOINT ["/usr/local/bin/dormouse-runner"]`,
		"--change", "ENV PATH=/usr/local/bin:/usr/bin:/bin", "-", boxImage)
	cmd.Stdin = &files
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("docker import: %v\n%s", err, said)
	}
}

// listenForContainers returns a listener that containers reach, and its address for them.
// This is the address of the engine's bridge on this machine. If containers run in a virtual
// machine, it is the address at which they reach this machine.
func listenForContainers(t *testing.T) (l net.Listener, address string) {
	t.Helper()
	host, on := "host.docker.internal", "127.0.0.1"
	name := run(t, "docker", "network", "inspect", "bridge", "--format", `{{index .Options "com.docker.network.bridge.name"}}`)
	if bridge, err := net.InterfaceByName(strings.TrimSpace(string(name))); err == nil {
		addresses, err := bridge.Addrs()
		if err != nil || len(addresses) == 0 {
			t.Fatalf("the bridge %s has no address, %v", name, err)
		}
		host, _, _ = strings.Cut(addresses[0].String(), "/")
		on = host
	}
	var c net.ListenConfig
	l, err := c.Listen(t.Context(), "tcp", net.JoinHostPort(on, "0"))
	commontest.OK(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	commontest.OK(t, err)
	return l, net.JoinHostPort(host, port)
}

// hostWithBoxesIn serves one server whose boxes are invocations, and returns its URL.
func hostWithBoxesIn(t *testing.T, invoke func(event []byte, tenant string)) string {
	t.Helper()
	servers, _, err := serversfile.Parse([]byte(`{"mcpServers":{"echo":{"command":"`+boxServer+`"}}}`), "servers.json", nil)
	commontest.OK(t, err)
	store, err := sqlitestore.Open(filepath.Join(t.TempDir(), "store.db"))
	commontest.OK(t, err)
	t.Cleanup(func() { _ = store.Close() })
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		event, err := io.ReadAll(r.Body)
		if err != nil || !strings.Contains(r.URL.Path, boxFunction) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		go invoke(event, r.Header.Get("X-Amz-Tenant-Id"))
	}))
	t.Cleanup(api.Close)
	boxes, err := lambda.New(lambda.Config{
		Region: samRegion, Endpoint: api.URL, Sizes: []lambda.Size{{MemoryMB: 512, Function: boxFunction}},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}, nil
		}),
	})
	commontest.OK(t, err)
	r := &runners{}
	r.api = sockets.New(sockets.Config{Name: "relay", Stage: "relay", Routes: r, Limits: apigw.Limits()})
	listener, host := listenForContainers(t)
	relay := &http.Server{Handler: r.api, ReadHeaderTimeout: time.Minute}
	go func() { _ = relay.Serve(listener) }()
	t.Cleanup(func() { _ = relay.Close() })
	f, err := wiring.New(wiring.Settings{
		Servers: servers, Secret: bytes.Repeat([]byte{7}, 32), Open: true, Idle: time.Minute, RelayURL: "ws://" + host + "/relay",
	}, wiring.Parts{
		Store: store, Fleet: boxes, Runners: r.api, Clients: nobody{}, Meter: meter.New(meter.Options{}),
		Log: slog.New(slog.NewJSONHandler(t.Output(), nil)),
	})
	commontest.OK(t, err)
	r.sealer, r.handler = f.Relay.Sealer, relayserver.NewHandler(f.RelayWithBucket())
	h, err := endpoints.NewHTTP(f, nil, endpoints.Alarms{}, nil, nil)
	commontest.OK(t, err)
	s := httptest.NewServer(h.Handler)
	t.Cleanup(s.Close)
	return s.URL
}

// runners are the routes of the WebSocket API for runners, as template.yaml has them.
type runners struct {
	api     *sockets.API
	sealer  *relayserver.Sealer
	handler *relayserver.Handler
}

func (r *runners) Connect(_ context.Context, _ sockets.Conn, req *http.Request) sockets.Reply {
	if r.sealer.Admit(req.Header) != nil {
		return sockets.Reply{Status: http.StatusUnauthorized}
	}
	return sockets.Reply{Status: http.StatusOK}
}

func (r *runners) Message(ctx context.Context, c sockets.Conn, data []byte) []byte {
	reply, err := r.handler.Frame(ctx, c.ID, data)
	if err != nil {
		return nil // the handler has logged it, and the runner sends the frame again
	}
	return reply
}

func (r *runners) Disconnect(context.Context, sockets.Conn, int, string) {}

// nobody is the WebSocket API for clients without any client.
type nobody struct{ storage.Clients }
