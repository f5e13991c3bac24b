//go:build walk

package stack_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/infra/internal/cranetest"
	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/apigw"
	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A stranger types the five commands of docs/aws/deploy.md in a clone, upgrades, and
// deletes the stack. The commands make, sam, aws, crane and dormouse are the real ones.
// Each command gets its arguments from what an earlier one printed. The emulator is AWS.
// In front of it is a stand-in for API Gateway, and a registry in memory is ECR's.
func TestAStrangersWalk(t *testing.T) {
	w := newWalk(t, "dormouse")
	before := map[string][]string{}
	w.do(&before, "left")

	// 1. make deploy
	said := w.types("make deploy GO_SERVERS=functions/natives " + w.arch + " ARGS=AlarmEmail=ops@example.com")
	w.hasImage()
	// 2. the output FirstKey
	key := w.types(line(t, said, "bin/dormouse keys create me "))
	// 3. the output ClaudeCode, with the names in it
	args := strings.Split(w.types(strings.NewReplacer("SERVER", "counter", "Bearer KEY", "Bearer "+strings.TrimSpace(key)).Replace(line(t, said, "claude mcp add "))), "\n")
	if !slices.Equal(args[:5], []string{"mcp", "add", "--transport", "http", "counter"}) || args[6] != "--header" {
		t.Fatalf("claude is asked %q", args)
	}
	client, err := w.dial(args[5], args[7])
	commontest.OK(t, err)
	w.says(client, 41, "41")
	// 4. the output PushServers
	commontest.OK(t, os.WriteFile(filepath.Join(w.clone, "servers.json"), []byte(strings.Replace(walked, "{\"counter\"", "{\"job\":{\"x-dormouse\":{\"native\":\"job\"}},\"counter\"", 1)), 0o600))
	commontest.Contains(t, "push says", "Version 1 of the servers file", w.types(line(t, said, "bin/dormouse push ")))
	// 5. make logs
	w.follows("make logs", `"server":"counter"`)

	// An operator looks, at the address of the stack.
	operator := strings.TrimSpace(w.types(line(t, said, "bin/dormouse keys create me ") + " --role operator"))
	endpoint := regexp.MustCompile(`(?m)^  (https://\S+/v1)$`).FindStringSubmatch(said)
	if endpoint == nil {
		t.Fatalf("the endpoint is not in %s", said)
	}
	at := " --url " + endpoint[1] + " --key " + operator
	commontest.Contains(t, "list says", "counter", w.types("bin/dormouse list"+at))
	// A stack keeps no output of boxes in the table, so the command says where the output
	// is.
	commontest.Contains(t, "logs says", "/dormouse/STACK/box", w.types("bin/dormouse logs one"+at+" 2>&1 || true"))
	opened := w.types(strings.ReplaceAll(line(t, said, "bin/dormouse open "), "KEY", operator))
	commontest.Contains(t, "the console's page is", "<!doctype html>", w.gets(strings.TrimSpace(opened)))

	// The upgrade: other code, and a box that is awake meanwhile.
	w.wakes(endpoint[1], key)
	again := w.types("make deploy GO_SERVERS=functions/natives " + w.arch + " ARGS='SessionHours=24'")
	commontest.EqualIn(t, "after the upgrade", line(t, said, "claude mcp add "), line(t, again, "claude mcp add "))
	w.says(client, 1, "42")
	commontest.Contains(t, "after the upgrade list says", "job", w.types("bin/dormouse list"+at))

	// Boxes as functions, which make delete takes along.
	w.types("make boxes")
	environments := map[string]map[string]string{}
	if w.do(&environments, "functions"); environments["dormouse-box-512"] == nil || !strings.Contains(environments["dormouse-http"]["DORMOUSE_BOX_FUNCTIONS"], `"dormouse-box-512"`) {
		t.Errorf("there are the functions %v", slices.Sorted(maps.Keys(environments)))
	}

	// make delete leaves what docs/aws/deploy.md says.
	gone, err := w.answers("make delete", func(string) string { return "dormouse" })
	if err != nil {
		t.Fatal(err, gone)
	}
	after := map[string][]string{}
	w.do(&after, "left")
	var left []string
	for kind, all := range after {
		for _, one := range all {
			if !slices.Contains(before[kind], one) {
				left = append(left, kind+" "+one)
			}
		}
	}
	table := strings.TrimPrefix(line(t, gone, "aws dynamodb delete-table "), "aws dynamodb delete-table --table-name ")
	bucket := strings.Fields(strings.TrimPrefix(line(t, gone, "aws s3 rb "), "aws s3 rb s3://"))[0]
	for _, want := range []string{"tables " + table, `buckets .*"` + regexp.QuoteMeta(bucket) + `"`, `buckets .*"aws-sam-cli-managed-default-`, "stacks .*aws-sam-cli-managed-default", `parameters .*"/dormouse.tickets/dormouse"`} {
		at := slices.IndexFunc(left, regexp.MustCompile(want).MatchString)
		if at < 0 {
			t.Errorf("%s is gone; there are %q", want, left)
			continue
		}
		left = slices.Delete(left, at, at+1)
	}
	// The call that wakes the box is still running. When it ends, the emulator makes the
	// log group anew for its log lines. On AWS no role of the stack may make a log group.
	left = slices.DeleteFunc(left, func(one string) bool {
		return strings.HasPrefix(one, "logs ") && strings.Contains(one, `"/dormouse/dormouse/http"`)
	})
	if len(left) > 0 {
		t.Errorf("make delete leaves %q", left)
	}
	// The three commands that it prints delete the rest.
	w.types(line(t, gone, "aws s3 rb "))
	w.types(line(t, gone, "aws dynamodb delete-table "))
	commontest.Contains(t, "the secret of tickets is not deleted", "/dormouse.tickets/dormouse", w.types(line(t, gone, "aws ssm delete-parameters ")))
}

// sam build && sam deploy --guided is the whole installation: Enter at each question, without
// make and without Docker, ends in a stack in which a stdio server answers.
func TestGuidedDeploymentTakesEnterOnly(t *testing.T) {
	w := newWalk(t, "dormouse")
	// The emulator executes the function for custom resources, on this machine.
	template, err := os.ReadFile(filepath.Join(w.clone, "template.yaml"))
	commontest.OK(t, err)
	arch := strings.TrimPrefix(w.arch, "ARCH=")
	w.writes(filepath.Join(w.clone, "template.yaml"), strings.Replace(string(template), "Default: arm64\n", "Default: "+arch+"\n", 1))
	w.writes(filepath.Join(w.clone, "servers.json"), inABox)
	asked := 0
	said, err := w.answers("export "+w.arch+"; sam build && sam deploy --guided", func(string) string { asked++; return "" })
	if err != nil || !strings.Contains(said, "Successfully created/updated stack") || strings.Contains(said, "Dockerfile") {
		t.Fatalf("%v\n%s", err, said)
	}
	if asked < 25 || asked > 40 {
		t.Errorf("%d questions are asked", asked)
	}
	t.Logf("%d questions", asked)
	commontest.Contains(t, "the next steps are not in", "claude mcp add ", said)
	w.callsABox(said)
	// make deploy takes what sam has written.
	commontest.Contains(t, "the doctor says", "nothing was found that would fail", w.types("make doctor GO_SERVERS=functions/natives"))
}

const walked = `{"mcpServers":{"counter":{"x-dormouse":{"native":"counter"}},"one":{"command":"true"}}}`

// walk is a stranger's clone and terminal.
type walk struct {
	*emulator
	stack     string
	clone     string
	arch      string
	env       []string
	client    *http.Client
	registry  string
	authority string // the file with its certificate
	gateway   string // the proxy that leads to the names of AWS
}

func newWalk(t *testing.T, stack string) *walk {
	t.Helper()
	w := &walk{emulator: emulate(t), stack: stack, clone: t.TempDir(), arch: "ARCH=x86_64"} // the processor of this machine, which executes the functions
	if runtime.GOARCH == "arm64" {
		w.arch = "ARCH=arm64"
	}
	w.copies()
	programs := t.TempDir()
	w.writes(filepath.Join(programs, "claude"), "#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
	w.serves()
	authority := filepath.Join(t.TempDir(), "ca.pem")
	gate := w.gate(authority)
	w.authority, w.gateway = authority, gate.String()
	w.gives(map[string]string{"HTTPS_PROXY": gate.String(), "SSL_CERT_FILE": authority})
	trusted, err := os.ReadFile(authority) //nolint:gosec // written above
	commontest.OK(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(trusted)
	// The emulator treats the answers of functions as text, so they must not be
	// compressed. (The client would otherwise ask for gzip.)
	w.client = &http.Client{Transport: &http.Transport{DisableCompression: true, Proxy: http.ProxyURL(gate), TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	w.env = append(os.Environ(), "PATH="+programs+":"+filepath.Dir(tools(t).python)+":"+withAWS(t), "AWS_ENDPOINT_URL="+w.endpoint, "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test",
		"AWS_DEFAULT_REGION=us-east-1", "AWS_CONFIG_FILE="+filepath.Join(programs, "none"), "AWS_SHARED_CREDENTIALS_FILE="+filepath.Join(programs, "none"), "AWS_PAGER=",
		"HTTPS_PROXY="+gate.String(), "AWS_ENDPOINT_URL_S3=https://"+s3, "AWS_CA_BUNDLE="+authority, "SSL_CERT_FILE="+authority, "BASE="+w.registry+"/base:1", "UV="+w.registry+"/uv:1", "MAKEFLAGS=", "PYTHONUNBUFFERED=1")
	return w
}

func (w *walk) writes(file, text string) {
	w.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o700); err != nil { //nolint:gosec // some are programs
		w.t.Fatal(err)
	}
}

// copies makes a clone of the repository as it is, with other servers.
func (w *walk) copies() {
	w.t.Helper()
	listed := run(w.t, "git", "-C", root(), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd := exec.CommandContext(w.t.Context(), "sh", "-c", `tar --null --ignore-failed-read -cf - -T - | tar -xf - -C "$0"`, w.clone) //nolint:gosec // our own folders
	cmd.Dir, cmd.Stdin = root(), bytes.NewReader(listed)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
	tools, err := filepath.Abs(root(".tools"))
	if err == nil {
		err = os.Symlink(tools, filepath.Join(w.clone, ".tools"))
	}
	commontest.OK(w.t, err)
	w.writes(filepath.Join(w.clone, "servers.json"), walked)
}

// types runs a command line in the clone and returns what it prints on stdout.
func (w *walk) types(command string) string {
	w.t.Helper()
	cmd := w.command(command)
	var out, says bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &says
	began := time.Now()
	err := cmd.Run()
	w.t.Logf("%s: %.0f s", command, time.Since(began).Seconds())
	if err != nil {
		w.t.Fatalf("%s: %v\n%s\n%s", command, err, &out, &says)
	}
	return out.String()
}

// prompt is a question at the end of what a terminal shows.
var prompt = regexp.MustCompile(`[^\r\n]*: (\x1b\[[0-9;]*m)*$`)

// answers runs a command line at a terminal, answers each of its questions, and returns what
// the terminal shows.
func (w *walk) answers(command string, answer func(question string) string) (string, error) {
	w.t.Helper()
	cmd := w.command(command)
	began := time.Now()
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 200})
	commontest.OK(w.t, err)
	defer func() { _ = terminal.Close() }()
	var shown []byte
	for some := make([]byte, 4096); ; {
		n, err := terminal.Read(some)
		shown = append(shown, some[:n]...)
		if err != nil { // the end of a terminal is an error
			break
		}
		if question := prompt.Find(shown); question != nil {
			if _, err := io.WriteString(terminal, answer(string(question))+"\n"); err != nil {
				break
			}
			shown = append(shown, '\n') // so that the question is answered once
		}
	}
	err = cmd.Wait()
	w.t.Logf("%s: %.0f s", command, time.Since(began).Seconds())
	return strings.ReplaceAll(colours.ReplaceAllString(string(shown), ""), "\r\n", "\n"), err
}

var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

func (w *walk) command(line string) *exec.Cmd {
	cmd := exec.CommandContext(w.t.Context(), "bash", "-c", line) //nolint:gosec // from the documents and from what they print
	cmd.Dir, cmd.Env = w.clone, w.env
	return cmd
}

// follows runs a command until it prints a text.
func (w *walk) follows(command, want string) {
	w.t.Helper()
	cmd := w.command(command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.StdoutPipe()
	commontest.OK(w.t, err)
	cmd.Stderr = cmd.Stdout
	commontest.OK(w.t, cmd.Start())
	var seen []string
	found := false
	for lines := bufio.NewScanner(out); !found && lines.Scan(); {
		seen = append(seen, lines.Text())
		found = strings.Contains(strings.ReplaceAll(lines.Text(), " ", ""), want) // sam indents JSON
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) // Ctrl-C
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait() // its error is that it was interrupted
	if !found {
		w.t.Errorf("%s shows no %s, but\n%s", command, want, strings.Join(seen, "\n"))
	}
}

// line returns the line of an output that begins with a text. If there is none, it looks behind
// the word Value, with which sam prints outputs at a wide terminal.
func line(t *testing.T, said, begin string) string {
	t.Helper()
	for _, before := range []string{"", "Value "} {
		for text := range strings.Lines(said) {
			text, found := strings.CutPrefix(strings.TrimSpace(text), before)
			if text = strings.TrimSpace(text); found && strings.HasPrefix(text, begin) {
				return text
			}
		}
	}
	t.Fatalf("%q is not in\n%s", begin, said)
	return ""
}

func (w *walk) dial(url, header string) (*mcp.ClientSession, error) {
	name, value, _ := strings.Cut(header, ": ")
	with := &http.Client{Transport: withHeader{w.client.Transport, name, value}}
	return mcp.NewClient(&mcp.Implementation{Name: "stranger", Version: "1"}, nil).Connect(w.t.Context(), &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: with, DisableStandaloneSSE: true}, nil)
}

type withHeader struct {
	http.RoundTripper
	name, value string
}

func (h withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(h.name, h.value)
	return h.RoundTripper.RoundTrip(r)
}

func (w *walk) says(s *mcp.ClientSession, by int, want string) {
	w.t.Helper()
	got, err := s.CallTool(w.t.Context(), &mcp.CallToolParams{Name: "add", Arguments: map[string]any{"by": by}})
	commontest.OK(w.t, err)
	if text, _ := got.Content[0].(*mcp.TextContent); text == nil || text.Text != want {
		w.t.Errorf("the counter says %+v, want %s", got.Content[0], want)
	}
}

// gets returns the page to which a link leads.
func (w *walk) gets(link string) string {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, link, nil)
	commontest.OK(w.t, err)
	res, err := w.client.Do(r)
	commontest.OK(w.t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		w.t.Fatalf("%s: %s, %v: %s", link, res.Status, err, text)
	}
	return string(text)
}

// wakes sends a message to a server whose box sleeps, and returns when a task was started for
// the box.
func (w *walk) wakes(endpoint, key string) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint+"/one/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"stranger","version":"1"}}}`))
	commontest.OK(w.t, err)
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(key))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	go func() {
		if res, err := w.client.Do(r); err == nil { // no runner comes, so nobody waits for the end
			_ = res.Body.Close()
		}
	}()
	var tasks []any
	for len(tasks) == 0 && ctx.Err() == nil {
		w.do(&tasks, "tasks")
	}
}

// hasImage checks that the registry has the image that the functions name.
func (w *walk) hasImage() {
	w.t.Helper()
	environments := map[string]map[string]string{}
	w.do(&environments, "functions")
	var place struct{ Image string }
	commontest.OK(w.t, json.Unmarshal([]byte(environments["dormouse-http"]["DORMOUSE_FLEET"]), &place))
	host, rest, _ := strings.Cut(place.Image, "/")
	name, tag, _ := strings.Cut(rest, ":")
	if tags := w.gets("https://" + host + "/v2/" + name + "/tags/list"); !strings.Contains(tags, `"`+tag+`"`) {
		w.t.Errorf("boxes have the image %s, and the registry %s", place.Image, tags)
	}
}

// serves starts the registry, with a base and an image of tools.
func (w *walk) serves() {
	w.t.Helper()
	crane := os.Getenv("DORMOUSE_TEST_CRANE")
	if crane == "" {
		w.t.Fatal("DORMOUSE_TEST_CRANE names no program: run make walk-stack")
	}
	w.registry = cranetest.Registry(w.t, crane)
	folder := w.t.TempDir()
	w.writes(filepath.Join(folder, "uv"), "uv")
	w.writes(filepath.Join(folder, "uvx"), "uvx")
	layer := filepath.Join(folder, "layer.tar")
	run(w.t, "tar", "-C", folder, "-cf", layer, "uv", "uvx")
	for _, image := range []string{"base:1", "uv:1"} {
		image = w.registry + "/" + image
		run(w.t, crane, "append", "--new_layer", layer, "--new_tag", image)
		run(w.t, crane, "mutate", "--set-platform", "linux/"+runtime.GOARCH, "--tag", image, image)
	}
}

// s3 is the name of S3, by which sam knows its templates again when it deletes them.
const s3 = "s3.us-east-1.amazonaws.com"

// gate starts a proxy that leads the names of AWS to stand-ins for API Gateway and ECR, and the
// names of S3 to the emulator. It writes the certificate that all of them have into a file, and
// returns the proxy's address.
func (w *walk) gate(authority string) *url.URL {
	w.t.Helper()
	api := &apigw.RESTAPI{
		Function: w.stack + "-http", Paths: map[string]string{"/console": w.stack + "-console", "/console/": w.stack + "-console"},
		Invoker: inEmulator{w.endpoint}, Stage: "v1", APIID: "local", Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	images := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: w.registry})
	pushed := regexp.MustCompile(`^/v2/(.+)/manifests/([^:]+)$`)
	images.ModifyResponse = func(res *http.Response) error { // the emulator's ECR knows what was pushed
		if of := pushed.FindStringSubmatch(res.Request.URL.Path); of != nil && res.Request.Method == http.MethodPut && res.StatusCode == http.StatusCreated {
			w.do(nil, "push", of[1], of[2])
		}
		return nil
	}
	objects := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", strings.TrimPrefix(w.endpoint, "http://")
		if bucket, ok := strings.CutSuffix(r.In.Host, "."+s3); ok {
			r.Out.URL.Path = "/" + bucket + r.Out.URL.Path
			r.Out.URL.RawPath = ""
		}
		r.Out.Host = r.Out.URL.Host
	}}
	relay, connections := w.relays()
	inside := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.URL.Path, "/@connections/"):
			connections.ServeHTTP(out, r)
		case r.Header.Get("Upgrade") != "":
			relay.ServeHTTP(out, r)
		case strings.Contains(r.Host, ".execute-api."):
			http.StripPrefix("/v1", api).ServeHTTP(out, r)
		case strings.Contains(r.Host, ".dkr.ecr."):
			images.ServeHTTP(out, r)
		case strings.HasSuffix(r.Host, s3):
			objects.ServeHTTP(out, r)
		default:
			http.Error(out, "nobody is called "+r.Host, http.StatusBadGateway)
		}
	}))
	inside.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(w.t, authority)}, MinVersion: tls.VersionTLS12}
	inside.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that break off a handshake are no errors
	inside.StartTLS()
	w.t.Cleanup(func() { inside.CloseClientConnections() })
	proxy := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(out, "only CONNECT", http.StatusMethodNotAllowed)
			return
		}
		to, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", inside.Listener.Addr().String())
		if err != nil {
			http.Error(out, err.Error(), http.StatusBadGateway)
			return
		}
		from, _, err := out.(http.Hijacker).Hijack()
		if err != nil {
			_ = to.Close()
			return
		}
		_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
		go func() {
			_, _ = io.Copy(to, from)
			_ = to.Close()
		}()
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}))
	w.t.Cleanup(proxy.Close)
	at, err := url.Parse(proxy.URL)
	commontest.OK(w.t, err)
	return at
}

// certificate returns a certificate for the names of AWS that the walk uses, and writes
// it to a file.
func certificate(t *testing.T, file string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	commontest.OK(t, err)
	names := []string{s3, "*." + s3, "*.execute-api.us-east-1.amazonaws.com", "*.dkr.ecr.us-east-1.amazonaws.com"}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the emulator"}, DNSNames: names, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, &key.PublicKey, key)
	if err == nil {
		err = os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
	}
	commontest.OK(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// inEmulator invokes functions in the emulator, as the REST API does. It adds the stage to the
// path in the request's context, as API Gateway does for calls under the API's own name.
type inEmulator struct{ endpoint string }

func (e inEmulator) Invoke(ctx context.Context, function string, payload []byte) (*lambda.Invocation, error) {
	var event struct {
		Path           string         `json:"path"`
		RequestContext map[string]any `json:"requestContext"`
	}
	all := map[string]any{}
	if err := errors.Join(json.Unmarshal(payload, &event), json.Unmarshal(payload, &all)); err != nil {
		return nil, err
	}
	event.RequestContext["path"] = "/v1" + event.Path // with the stage
	all["requestContext"] = event.RequestContext
	payload, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	answer, err := emulated(ctx, e.endpoint, function, payload)
	if err != nil {
		return nil, err
	}
	var whole string // the answer that a function streams
	if err := json.Unmarshal([]byte(answer), &whole); err != nil {
		return nil, fmt.Errorf("%s answers %s: %w", function, answer, err)
	}
	return &lambda.Invocation{Body: io.NopCloser(strings.NewReader(whole))}, nil
}
