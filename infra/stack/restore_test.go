//go:build walk

package stack_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/dormouse-mcp/dormouse/infra/internal/restored"
	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/backend/bucket"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
)

const hostedInTheDrill = `{"mcpServers":{"counter":{"x-dormouse":{"native":"counter"}},"booking":{"x-dormouse":{"native":"booking"}},"job":{"x-dormouse":{"native":"job"}},"one":{"command":"a"}}}`

// make restore restores the table beside the stack. Then the table is lost, and the
// functions are deployed with the restored one, as docs/aws/backup.md says. Sessions,
// values, keys, sealed data and kept workspaces survive. The functions run in the
// emulator, with the rights of their roles.
func TestAStackGoesOnWithARestoredTable(t *testing.T) {
	d := newDrill(t)
	made := d.made
	d.lines(made)
	store := d.table(made.Resources["Table"])
	// The test runs the command lines of the outputs unchanged.
	commontest.Contains(t, "the line of PushServers says", "Version 1 of the servers file", d.line(made.Outputs["PushServers"]))

	counter := d.open("counter")
	d.says(counter, `"name":"add","arguments":{"by":41}`, "41")
	asked := d.book("")
	if asked.RequestState == "" {
		t.Fatalf("the call does not ask: %+v", asked)
	}
	commontest.OK(t, d.vault(store).Put(t.Context(), "default", "me", "github", "a token"))
	at := storage.Session{ID: storage.NewID(), Server: "one", Tenant: "default", Created: time.Now(), Expires: time.Now().Add(time.Hour)}
	box := storage.Box{ID: storage.BoxFor("default", "one"), State: storage.Asleep, Gen: 2}
	commontest.OK(t, store.Create(t.Context(), at))
	commontest.OK(t, store.SaveBox(t.Context(), box))
	d.keep(box, "of the backup")

	next := d.restore()
	_, table, _ := strings.Cut(next, "ARGS='RestoredTable=")
	table = strings.TrimSuffix(table, "'")
	// This happens after the backup and is lost, but the workspace stays.
	d.says(counter, `"name":"add","arguments":{"by":100}`, "141")
	box.Gen = 7
	d.keep(box, "newer than the backup")
	d.do(nil, "lose", made.Resources["Table"])

	again := d.table(table)
	var s struct{ Expires, Recovers string }
	if d.do(&s, "settings", table); s.Expires != "x" || s.Recovers != "ENABLED" { // AWS leaves them off
		t.Errorf("the restored table has the settings %+v", s)
	}
	made = d.change("update", "RestoredTable="+table)
	if made.Outputs["TableName"] != table || !strings.Contains(made.Outputs["FirstKey"], "dynamodb:"+table+"?") {
		t.Errorf("the outputs name another table: %v", made.Outputs)
	}
	d.serve(d.code, table)
	commontest.Contains(t, "the line of PushServers says", "Version 2 of the servers file", d.line(made.Outputs["PushServers"]))

	d.says(counter, `"name":"add","arguments":{}`, "42")
	if end := d.book(asked.RequestState); len(end.Content) != 1 || end.Content[0].Text != "booked: Rome" {
		t.Errorf("the call that asked ended with %+v", end)
	}
	had, _, err := d.vault(again).Get(t.Context(), "default", "me", []string{"github"})
	if err != nil || had["github"].Value != "a token" {
		t.Errorf("what was sealed is %+v, %v", had, err)
	}
	box, err = again.Box(t.Context(), box.ID)
	if err != nil || box.Gen != 2+restored.Jump {
		t.Fatalf("the box is %+v, %v", box, err)
	}
	commontest.EqualIn(t, "the kept workspace is", "newer than the backup", d.kept(box))
	box.Gen++ // as when the box wakes
	d.keep(box, "saved after the restore")
	commontest.EqualIn(t, "the workspace kept after the restore is", "saved after the restore", d.kept(box))
	commontest.Contains(t, "a connection without a pass", `"statusCode": 401`, d.invoke("dormouse-relay", eventFile(t, "relay-connect.json")))

	// Without the secret of the stack, what it sealed is lost; keys and sessions are not.
	d.secret = strings.Repeat("07", 32)
	d.serve("", table)
	d.says(counter, `"name":"add","arguments":{}`, "43")
	if end := d.book(asked.RequestState); !strings.Contains(end.error, "requestState is not one") {
		t.Errorf("under another secret the call that asked ends with %+v", end)
	}
	if had, _, err := d.vault(again).Get(t.Context(), "default", "me", []string{"github"}); err == nil && had["github"].Value != "" {
		t.Errorf("under another secret there is %+v", had)
	}
}

// drill is a stack in the emulator, which also runs its functions.
type drill struct {
	*emulator
	made   made
	code   string // the folder with that of the functions
	secret string // the secret of the functions, in hexadecimal
	key    string // the key of a client, which the command of FirstKey has made
	folder string // where the command lines of outputs are run
}

// newDrill creates a stack with these parameters.
func newDrill(t *testing.T, parameters ...string) *drill {
	t.Helper()
	e := emulate(t)
	d := &drill{emulator: e, made: e.change("create", parameters...), code: e.programs(), secret: strings.Repeat("5e", 32)}
	d.serve(d.code, d.made.Resources["Table"])
	d.key = d.line(d.made.Outputs["FirstKey"])
	return d
}

// restore runs make restore, and returns the next command that it prints.
func (d *drill) restore() string {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), "go", "run", "./infra/stack/deploy", "restore") // as the Makefile does
	cmd.Dir, cmd.Env = root(), append(os.Environ(), "PATH="+withAWS(d.t), "AWS_ENDPOINT_URL="+d.endpoint, "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_DEFAULT_REGION=us-east-1")
	out, err := cmd.CombinedOutput()
	said := string(out)
	if err != nil || !strings.Contains(said, "1 boxes are ready to wake") {
		d.t.Fatalf("make restore: %v\n%s", err, said)
	}
	return strings.TrimSpace(said[strings.Index(said, "make deploy"):])
}

// line runs the command line of an output in a folder with the servers file, and returns
// what it prints. The store is in the emulator.
func (d *drill) line(output string) string {
	d.t.Helper()
	if d.folder == "" {
		d.folder = d.t.TempDir()
		if out, err := exec.CommandContext(d.t.Context(), "go", "build", "-o", filepath.Join(d.folder, "bin", "dormouse"), root("infra", "cmd", "dormouse")).CombinedOutput(); err != nil { //nolint:gosec // our own folders
			d.t.Fatalf("%v\n%s", err, out)
		}
		commontest.OK(d.t, os.WriteFile(filepath.Join(d.folder, "servers.json"), []byte(hostedInTheDrill), 0o600))
	}
	cmd := exec.CommandContext(d.t.Context(), "sh", "-c", output) //nolint:gosec // our own template
	cmd.Dir, cmd.Env = d.folder, append(os.Environ(), "AWS_ENDPOINT_URL="+d.endpoint, "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test")
	var says bytes.Buffer
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil {
		d.t.Fatalf("%s: %v: %s", output, err, &says)
	}
	return strings.TrimSpace(string(out))
}

// programs returns a folder with the code of functions, as files that sam would upload.
func (e *emulator) programs() string {
	e.t.Helper()
	folder := e.t.TempDir()
	for name, source := range map[string]string{"http": "natives", "relay": "relay"} {
		program := filepath.Join(folder, name)
		build(e.t, program, root("functions", source))
		code, err := os.ReadFile(program) //nolint:gosec // made above
		commontest.OK(e.t, err)
		var archive bytes.Buffer
		z := zip.NewWriter(&archive)
		for file, text := range map[string][]byte{"bootstrap": code, "servers.json": []byte(hostedInTheDrill)} {
			h := &zip.FileHeader{Name: file, Method: zip.Store}
			h.SetMode(0o755)
			w, err := z.CreateHeader(h)
			if err == nil {
				_, err = w.Write(text)
			}
			commontest.OK(e.t, err)
		}
		commontest.OK(e.t, z.Close())
		commontest.OK(e.t, os.WriteFile(program+".zip", archive.Bytes(), 0o600))
	}
	return folder
}

// serve gives the functions the code in the folder programs; "" leaves their code as it is. It
// checks that the stack gave them the name of the table. It also sets the emulator's address,
// and a secret, because the one that the emulator generates is not hexadecimal.
func (d *drill) serve(programs, table string) {
	d.t.Helper()
	environments := map[string]map[string]string{}
	d.do(&environments, "functions")
	for _, name := range []string{"http", "relay"} {
		if got := environments["dormouse-"+name]["DORMOUSE_STORE"]; got != "dynamodb:"+table {
			d.t.Errorf("%s works with %s, want %s", name, got, table)
		}
		code := "-"
		if programs != "" {
			code = filepath.Join(programs, name+".zip")
		}
		d.do(nil, "code", "dormouse-"+name, code, "AWS_ENDPOINT_URL="+d.endpoint, "DORMOUSE_SECRET="+d.secret)
	}
}

func (d *drill) table(name string) *dynamostore.Store {
	location := dynamostore.Location{Table: name, Region: "us-east-1", Endpoint: d.endpoint}
	return dynamostore.New(location.Client(owner(), nil), name, dynamostore.Options{})
}

func (d *drill) vault(store storage.Store) *credentials.Vault {
	d.t.Helper()
	secret, err := hex.DecodeString(d.secret)
	commontest.OK(d.t, err)
	v, err := credentials.New(credentials.Config{Store: store, Secret: secret})
	commontest.OK(d.t, err)
	return v
}

func (d *drill) bucket() *bucket.Bucket {
	return bucket.New(bucket.Config{Location: bucket.Location{Bucket: d.made.Resources["Bucket"], Prefix: "snapshots", Region: "us-east-1", Endpoint: d.endpoint}, Credentials: owner()})
}

// keep saves the workspace of a box, as its runner does.
func (d *drill) keep(box storage.Box, text string) {
	d.t.Helper()
	object, put, header, err := d.bucket().Room(d.t.Context(), box.ID, "owner", box.Gen, int64(len(text)), "")
	if err != nil {
		d.t.Fatalf("generation %d keeps: %v", box.Gen, err)
	}
	r, err := http.NewRequestWithContext(d.t.Context(), http.MethodPut, put, strings.NewReader(text))
	commontest.OK(d.t, err)
	for name, value := range header {
		r.Header.Set(name, value)
	}
	d.send(r)
	commontest.OKIn(d.t, fmt.Sprintf("generation %d keeps", box.Gen), d.bucket().Commit(d.t.Context(), box.ID, "owner", box.Gen, object))
}

// kept returns the newest workspace of a box.
func (d *drill) kept(box storage.Box) string {
	d.t.Helper()
	url, _, _, err := d.bucket().Newest(d.t.Context(), box.ID, "owner")
	commontest.OK(d.t, err)
	r, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, url, nil)
	commontest.OK(d.t, err)
	return d.send(r)
}

// send sends a request and returns the body of the answer, which must be good.
func (d *drill) send(r *http.Request) string {
	d.t.Helper()
	res, err := http.DefaultClient.Do(r)
	commontest.OK(d.t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		d.t.Fatalf("%s %s: %s, %v: %s", r.Method, r.URL.Path, res.Status, err, text)
	}
	return string(text)
}

// invoke returns what a function answers. It must not fail.
func (d *drill) invoke(function string, event []byte) string {
	d.t.Helper()
	said, err := emulated(d.t.Context(), d.endpoint, function, event)
	commontest.OK(d.t, err)
	return said
}

// emulated invokes a function in the emulator, with the owner's rights. It is an error if the
// function fails.
func emulated(ctx context.Context, endpoint, function string, event []byte) (answer string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint+"/2015-03-31/functions/"+function+"/invocations", bytes.NewReader(event))
	if err != nil {
		return "", err
	}
	keys, err := owner().Retrieve(ctx)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(event)
	if err := v4.NewSigner().SignHTTP(ctx, keys, r, hex.EncodeToString(sum[:]), "lambda", "us-east-1", time.Now()); err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err == nil && (res.StatusCode != http.StatusOK || res.Header.Get("X-Amz-Function-Error") != "") {
		err = fmt.Errorf("%s is answered with %s: %s", function, res.Status, text)
	}
	return string(text), err
}

// event returns the event of an MCP message.
func (d *drill) event(server, body string, header map[string]string) []byte {
	d.t.Helper()
	var event object
	commontest.OK(d.t, json.Unmarshal(eventFile(d.t, "http-initialize.json"), &event))
	all := object{"Accept": "application/json, text/event-stream", "content-type": "application/json", "Authorization": "Bearer " + d.key, "Host": "a.execute-api.us-east-1.amazonaws.com"}
	many := object{}
	for name, value := range header {
		all[name] = value
	}
	for name, value := range all {
		many[name] = []any{value}
	}
	event["headers"], event["multiValueHeaders"] = all, many
	event["path"], event["pathParameters"] = "/"+server+"/mcp", object{"proxy": server + "/mcp"}
	event["body"], event["isBase64Encoded"] = base64.StdEncoding.EncodeToString([]byte(body)), true
	text, err := json.Marshal(event)
	commontest.OK(d.t, err)
	return text
}

// request sends an MCP message through the http function, and returns the answer's headers
// and body.
func (d *drill) request(server, body string, header map[string]string) (got struct {
	StatusCode int
	Headers    map[string]string
	Body       string
},
) {
	d.t.Helper()
	said := d.invoke("dormouse-http", d.event(server, body, header))
	var whole string // a prelude, eight zeros, and the body: as Lambda streams it
	commontest.OKIn(d.t, "http answers "+said, json.Unmarshal([]byte(said), &whole))
	prelude, rest, _ := strings.Cut(whole, strings.Repeat("\x00", 8))
	commontest.OKIn(d.t, fmt.Sprintf("http answers %q", whole), json.Unmarshal([]byte(prelude), &got))
	got.Body = rest
	return got
}

// open begins a session and returns the headers of its requests.
func (d *drill) open(server string) map[string]string {
	d.t.Helper()
	got := d.request(server, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"drill","version":"1"}}}`, nil)
	id := ""
	for name, value := range got.Headers {
		if strings.EqualFold(name, "Mcp-Session-Id") {
			id = value
		}
	}
	if id == "" {
		d.t.Fatalf("initialize is answered with %+v", got)
	}
	header := map[string]string{"Mcp-Session-Id": id, "MCP-Protocol-Version": "2025-11-25"}
	d.request(server, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, header)
	return header
}

// says calls a tool of the counter, which must say want.
func (d *drill) says(header map[string]string, params, want string) {
	d.t.Helper()
	if got := d.request("counter", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{`+params+`}}`, header); !strings.Contains(got.Body, `"text":"`+want+`"`) {
		d.t.Errorf("the counter says %+v, want %s", got, want)
	}
}

// booked is the result of a call that asks.
type booked struct {
	RequestState string
	Content      []struct{ Text string }
	error        string
}

// book calls the tool that asks, or with a state answers its question.
func (d *drill) book(state string) booked {
	d.t.Helper()
	answer := ""
	if state != "" {
		answer = fmt.Sprintf(`,"requestState":%q,"inputResponses":{"agree":{"action":"accept","content":{"seats":2}}}`, state)
	}
	got := d.request("booking", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"book","arguments":{"trip":"Rome"}`+answer+
		`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"drill","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}}}}}`,
		map[string]string{"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "book"})
	text := got.Body
	if _, data, stream := strings.Cut(text, "data: {"); stream {
		text, _, _ = strings.Cut("{"+data, "\n")
	}
	var m struct {
		Result booked
		Error  struct{ Message string }
	}
	commontest.OKIn(d.t, fmt.Sprintf("the answer is %+v", got), json.Unmarshal([]byte(text), &m))
	m.Result.error = m.Error.Message
	return m.Result
}

func eventFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(root("events", name))
	commontest.OK(t, err)
	return text
}
