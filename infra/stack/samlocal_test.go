//go:build samlocal

package stack_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore/dynamotest"
)

// These tests send every file of events/ to its function in the container of sam local
// invoke. The function is built as for a deployment. Beside it run DynamoDB Local, and one
// server that imitates ECS, both @connections APIs, and the runner of a box.

// SAM gives these credentials to a function when the machine has none. DynamoDB Local
// keeps separate tables for each key.
const (
	samKey    = "defaultkey"
	samSecret = "defaultsecret"
	samRegion = "us-east-1"
)

// Values in the files of events/.
const (
	eventKey     = "dm_example2_exampleexampleexampleexampleexam"
	eventSession = storage.ID("2kq8v4m1t7h3c9p5n0r6d2g8s4j1b7u3")
	eventToken   = "Yk3vX0mC2b1yZtQJ8nXo5g"
	eventTicket  = "Zx0aB1cD2eF3" // a placeholder, because a real ticket is valid for a week only
	eventTask    = "q4C0mXyG2b1yZtQJ8nXo5wq1o5m3k0o9s7d2f4h6j8k"
	runnerConn   = "UZxGacMkIAMDJRA="
	clientConn   = "UZxFkdMkIAMCJQA="
	tenant       = "acme"
	principal    = "ada"
	server       = "everything"
)

// dynamoDB serves all cases of a run.
var dynamoDB = dynamotest.Server{Running: os.Getenv(dynamotest.Variable)}

func TestMain(m *testing.M) {
	code := m.Run()
	dynamoDB.Stop()
	os.Exit(code)
}

// world is the state of the services before one invocation.
type world struct {
	t       *testing.T
	url     string // URL of the server that imitates AWS, for containers
	table   string
	store   storage.Store
	sealer  *relayserver.Sealer
	handler *relayserver.Handler
	digest  string

	mu    sync.Mutex
	posts map[string][]string // messages by connection
	tasks []map[string]string // environments of the started tasks
	gone  map[string]bool     // connections that answer 410
	dead  bool                // the runner does not answer
	faint error               // an error of the imitated runner
}

const secretHex = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

func newWorld(t *testing.T) *world {
	t.Helper()
	dynamo, err := dynamoDB.Endpoint()
	commontest.OK(t, err)
	to, err := url.Parse(dynamo)
	commontest.OK(t, err)
	w := &world{t: t, table: "t" + storage.NewNonce(), posts: map[string][]string{}, gone: map[string]bool{}}
	w.listen(httputil.NewSingleHostReverseProxy(to))
	client := dynamodb.New(dynamodb.Options{
		Region: samRegion, BaseEndpoint: &dynamo,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: samKey, SecretAccessKey: samSecret}, nil
		}),
	})
	create, _, err := dynamostore.TableDefinition(w.table)
	if err == nil {
		_, err = client.CreateTable(t.Context(), create)
	}
	commontest.OK(t, err)
	w.store = dynamostore.New(client, w.table, dynamostore.Options{Patience: time.Minute})
	secret, err := hex.DecodeString(secretHex)
	if err == nil {
		w.sealer, err = relayserver.NewSealer(secret)
	}
	commontest.OK(t, err)
	w.handler = relayserver.NewHandler(relayserver.Config{Store: w.store, Sealer: w.sealer, Poster: w, Fleet: noFleet{}, Launch: nil})
	servers, _, err := serversfile.Load(root("servers.json"), os.LookupEnv)
	commontest.OK(t, err)
	s, _ := servers.Server(server)
	w.digest = s.Digest
	return w
}

type noFleet struct{ fleet.Fleet }

// listen starts the server that imitates AWS.
func (w *world) listen(dynamo http.Handler) {
	w.t.Helper()
	l, address := listenForContainers(w.t)
	mux := http.NewServeMux()
	for _, api := range []string{"relay", "socket"} {
		mux.HandleFunc("POST /"+api+"/@connections/{id}", w.connections)
		mux.HandleFunc("DELETE /"+api+"/@connections/{id}", w.connections)
	}
	mux.HandleFunc("POST /ecs/", w.ecs)
	mux.Handle("/", dynamo)
	s := httptest.NewUnstartedServer(mux)
	_ = s.Listener.Close() // containers cannot reach its address
	s.Listener = l
	s.Start()
	w.t.Cleanup(s.Close)
	w.url = "http://" + address
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

// connections is the @connections API of both WebSocket APIs.
func (w *world) connections(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = w.Post(r.Context(), r.PathValue("id"), body)
	}
	if err != nil {
		rw.Header().Set("X-Amzn-Errortype", "GoneException")
		rw.WriteHeader(http.StatusGone)
	}
}

// Post implements storage.Poster. An imitated runner gets the messages for the runner's
// connection.
func (w *world) Post(_ context.Context, conn string, data []byte) error {
	w.mu.Lock()
	w.posts[conn] = append(w.posts[conn], string(data))
	gone, dead := w.gone[conn], w.dead
	w.mu.Unlock()
	if gone {
		return storage.Errorf(storage.Closed, "the test closed it")
	}
	if f, err := frametest.Decode(data); conn == runnerConn && !dead && err == nil && f.Type == frame.TypeDeliver {
		go w.execute(f)
	}
	return nil
}

// execute answers every request of a delivery.
func (w *world) execute(f frametest.Frame) {
	message := f.Payload[f.Lens[0]:]
	one := []json.RawMessage{message}
	if bytes.HasPrefix(message, []byte("[")) {
		_ = json.Unmarshal(message, &one) // the payload is what the function sent
	}
	item := frame.EventItem{Ticket: f.Ticket, Stream: f.ID, First: 1, Final: true, Marked: f.Inbox}
	out := frametest.Frame{Type: frame.TypeEvents, Box: storage.BoxFor(tenant, server), Gen: f.Gen, Session: f.Session, Seq: 1}
	for _, raw := range one {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Params struct {
				Arguments struct {
					Message string `json:"message"`
				} `json:"arguments"`
			} `json:"params"`
		}
		if err := json.Unmarshal(raw, &m); err != nil || m.ID == nil {
			continue
		}
		event := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%q}]}}`, m.ID, "Echo: "+m.Params.Arguments.Message)
		item.Lens = append(item.Lens, len(event))
		out.Payload = append(out.Payload, event...)
	}
	out.Items = []frame.EventItem{item}
	w.say(out)
}

// say sends a frame as the runner.
func (w *world) say(f frametest.Frame) (answer frametest.Frame) {
	f.V = frame.Version
	raw, err := w.handler.Frame(context.Background(), runnerConn, frametest.Encode(f))
	if err == nil && raw != nil {
		answer, err = frametest.Decode(raw)
	}
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.faint = fmt.Errorf("a %s frame of the runner: %w", f.Type, err)
	}
	return answer
}

// ecs imitates ECS: it starts tasks, and its list of tasks is empty.
func (w *world) ecs(rw http.ResponseWriter, r *http.Request) {
	_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	var in struct {
		ClientToken string `json:"clientToken"`
		Overrides   struct {
			ContainerOverrides []struct {
				Environment []struct{ Name, Value string } `json:"environment"`
			} `json:"containerOverrides"`
		} `json:"overrides"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		rw.WriteHeader(http.StatusBadRequest)
		return
	}
	answer := map[string]any{}
	switch action {
	case "RunTask":
		env := map[string]string{}
		for _, e := range in.Overrides.ContainerOverrides[0].Environment {
			env[e.Name] = e.Value
		}
		answer = map[string]any{"tasks": []any{map[string]any{"taskArn": "arn:aws:ecs:us-east-1:123456789012:task/c/1", "startedBy": in.ClientToken}}}
		w.mu.Lock()
		w.tasks = append(w.tasks, env)
		dead := w.dead
		w.mu.Unlock()
		if !dead {
			go w.wake(env)
		}
	case "ListTasks":
		answer["taskArns"] = []string{}
	}
	rw.Header().Set("Content-Type", "application/x-amz-json-1.1")
	_ = json.NewEncoder(rw).Encode(answer) // the function may be gone
}

// wake does the first step of a task's runner.
func (w *world) wake(env map[string]string) {
	var gen storage.Generation
	_, _ = fmt.Sscan(env[frame.EnvGeneration], &gen)
	box := storage.BoxID(env[frame.EnvBox])
	w.say(frametest.Frame{Type: frame.TypeHello, Box: box, Gen: gen, Token: env[frame.EnvToken], Runner: "r9", Link: 1, Task: env["DORMOUSE_BOX_TASK"]})
	w.say(frametest.Frame{Type: frame.TypePull, Box: box, Gen: gen, Runner: "r9", N: 1})
}

// settings returns the environment of the function.
func (w *world) settings() map[string]string {
	place := `{"region":"us-east-1","cluster":"c","subnets":["subnet-1"],"securityGroups":["sg-1"],"executionRole":"arn:aws:iam::123456789012:role/r",` +
		`"family":"stack-box","image":"example.com/r","runner":"stack-bucket/runner/` + strings.Repeat("0", 64) + `","cpus":0.25,"memoryMb":512,"arch":"arm64","endpoint":"` + w.url + `/ecs/"}`
	return map[string]string{
		"DORMOUSE_STORE":              "dynamodb:" + w.table + "?endpoint=" + url.QueryEscape(w.url) + "&region=" + samRegion,
		"DORMOUSE_SECRET":             secretHex,
		"DORMOUSE_RELAY_URL":          "wss://relay.example.com/v1",
		"DORMOUSE_RELAY_CONNECTIONS":  w.url + "/relay",
		"DORMOUSE_SOCKET_CONNECTIONS": w.url + "/socket",
		"DORMOUSE_FLEET":              place,
		"DORMOUSE_IDLE":               "120",
		"DORMOUSE_SNAPSHOTS":          "",
		"DORMOUSE_SCHEDULES":          "",
	}
}

// invoke runs sam local invoke and returns the function's answer.
func (w *world) invoke(event string, raw []byte) []byte {
	w.t.Helper()
	name, _, _ := strings.Cut(event, "-")
	stdout, stderr, err := samInvoke(w.t, strings.ToUpper(name[:1])+name[1:]+"Function", raw, w.settings())
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || w.faint != nil {
		w.t.Fatalf("%v, %v\n%s%s", err, w.faint, stdout, stderr)
	}
	if w.t.Failed() || testing.Verbose() {
		w.t.Logf("%s", stderr)
	}
	return stdout
}

// samInvoke runs sam local invoke with an event, and returns the function's answer and the
// output of sam and the function. more are flags, and then parameters of the template.
func samInvoke(t *testing.T, function string, event []byte, settings map[string]string, more ...string) (stdout, stderr []byte, err error) {
	dir := t.TempDir()
	vars, err := json.Marshal(map[string]any{"Parameters": settings})
	if err != nil {
		return nil, nil, err
	}
	for name, content := range map[string][]byte{"event.json": event, "vars.json": vars} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, nil, err
		}
	}
	template := shortTemplate()
	if function == boxFunction { // a function of another stack
		template = "boxes.yaml"
	}
	args := []string{
		"-m", "samcli", "local", "invoke", function, "--template", template, "--event", filepath.Join(dir, "event.json"),
		"--env-vars", filepath.Join(dir, "vars.json"), "--no-memory-limit",
	}
	if os.Getenv("ENGINE_STARTED") != "" {
		args = append(args, "--skip-pull-image")
	}
	parameters := []string{"--parameter-overrides", "Architecture=" + lambdaArch()}
	for _, m := range more {
		if strings.Contains(m, "=") {
			parameters = append(parameters, m)
		} else {
			args = append(args, m)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, tools(t).python, append(args, parameters...)...)
	cmd.Env = append(os.Environ(), "AWS_DEFAULT_REGION="+samRegion, "SAM_CLI_TELEMETRY=0", "AWS_EC2_METADATA_DISABLED=true")
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("sam local invoke %s: %w", function, err)
	}
	return out.Bytes(), errors.Bytes(), err
}

// lambdaArch returns this machine's architecture, so that nothing needs emulation.
func lambdaArch() string {
	if runtime.GOARCH == "amd64" {
		return "x86_64"
	}
	return runtime.GOARCH
}

func buildDir() string { return root(".aws-sam", "local") }

// built makes the template with the functions from make sam-local. In it functions/http has
// a short time, because it holds an HTTP+SSE stream until its time is over.
func built(t *testing.T) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(buildDir(), "template.yaml"))
	if err != nil {
		t.Fatalf("%v: run make sam-local", err)
	}
	short := bytes.Replace(raw, []byte("Timeout: 900"), []byte("Timeout: 15"), 1)
	if bytes.Equal(short, raw) {
		t.Fatal("no function has 900 s")
	}
	part := filepath.Join(t.TempDir(), "template.yaml")
	commontest.OK(t, os.WriteFile(part, short, 0o600))
	commontest.OK(t, os.Rename(part, shortTemplate()))
}

func shortTemplate() string { return filepath.Join(buildDir(), "template-short.yaml") }

// keep stores the records that the events name: the key and, if the case has one, the
// session.
func (w *world) keep(transport storage.Transport) {
	w.t.Helper()
	now := time.Now()
	sum := sha256.Sum256([]byte(eventKey))
	err := w.store.Keys().Create(w.t.Context(), storage.Key{
		ID: "example2", Hash: sum[:], Tenant: tenant, Principal: principal, Servers: []string{storage.EveryServer}, Created: now,
	})
	if err == nil && transport != "" {
		err = w.store.Create(w.t.Context(), storage.Session{
			ID: eventSession, Server: server, Digest: w.digest, Tenant: tenant, Principal: principal, Transport: transport, State: storage.Ready,
			Version: "2025-11-25", Init: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"example-client","version":"1.0.0"}}`),
			Created: now, Used: now, Expires: now.Add(time.Hour), Pushes: true, Served: true,
		})
	}
	commontest.OK(w.t, err)
}

// note stores a part of the server's handshake record.
func (w *world) note(part, result string) {
	w.t.Helper()
	err := w.store.SaveHandshake(w.t.Context(), storage.Handshake{
		Digest: storage.RecordFor(tenant, w.digest), Version: part, Result: json.RawMessage(result), Taken: time.Now(),
	})
	commontest.OK(w.t, err)
}

// box stores the box that the events name, in a state.
func (w *world) box(state storage.BoxState) {
	w.t.Helper()
	b := storage.Box{ID: storage.BoxFor(tenant, server), Tenant: tenant, Server: server, State: state, Gen: 4, Changed: time.Now()}
	switch state {
	case storage.Awake:
		b.Runner, b.Conn, b.Link, b.Task = "r9", runnerConn, 1, eventTask
	case storage.Starting:
		sum := sha256.Sum256([]byte(eventToken))
		b.TokenHash, b.Until, b.Attempt, b.Owner = hex.EncodeToString(sum[:]), time.Now().Add(time.Minute), 1, "o"
	case storage.Asleep:
	}
	commontest.OK(w.t, w.store.SaveBox(w.t.Context(), b))
}
