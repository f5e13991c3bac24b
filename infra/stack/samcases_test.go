//go:build samlocal

package stack_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// samCase says what the store has before one event, and what must come of the event.
type samCase struct {
	before func(*world)
	change func(*world, []byte) []byte // puts values into an event that are made at the time of the test; nil for none
	want   func(*world, []byte)
}

func TestEveryEventPassesUnderSAMLocal(t *testing.T) {
	cases := samCases()
	found, err := filepath.Glob(root("events", "*.json"))
	commontest.OK(t, err)
	names := map[string]bool{}
	for _, file := range found {
		if filepath.Base(file) == "env.json" {
			continue
		}
		names[strings.TrimSuffix(filepath.Base(file), ".json")] = true
	}
	for name := range cases {
		if event, _, _ := strings.Cut(name, " "); !names[event] {
			t.Errorf("there is no event %s", event)
		}
	}
	for name := range names {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(cases)), func(c string) bool { return c == name || strings.HasPrefix(c, name+" ") }) {
			t.Errorf("nothing is known of what comes of events/%s.json", name)
		}
	}
	built(t)
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			event, _, _ := strings.Cut(name, " ")
			raw, err := os.ReadFile(root("events", event+".json"))
			commontest.OK(t, err)
			w, c := newWorld(t), cases[name]
			if c.before == nil {
				w.keep("")
			} else {
				c.before(w)
			}
			if c.change != nil {
				raw = c.change(w, raw)
			}
			c.want(w, w.invoke(event, raw))
		})
	}
}

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

// TestSAMLocalIsPrepared fetches the files that the tests under SAM need from the
// network. The engine that runs those tests has no network.
func TestSAMLocalIsPrepared(t *testing.T) {
	tools(t)
	if _, err := dynamoDB.Endpoint(); err != nil {
		t.Fatal(err)
	}
}

const (
	initResult = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"noted","version":"1.0.0"}}`
	listResult = `{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}`
)

// with prepares a world with a session over a transport, the server's handshake
// record, and a box in a state.
func with(transport storage.Transport, state storage.BoxState) func(*world) {
	return func(w *world) {
		w.keep(transport)
		w.note("2025-11-25", initResult)
		w.box(state)
	}
}

func samCases() map[string]samCase {
	all := httpCases()
	maps.Copy(all, socketCases())
	maps.Copy(all, relayCases())
	maps.Copy(all, sweepCases())
	return all
}

func httpCases() map[string]samCase {
	echo := status(200, "application/json", `"text":"Echo: good morning"`)
	return map[string]samCase{
		"http-initialize": {with("", storage.Asleep), nil, func(w *world, out []byte) {
			head, body := streamed(w, out)
			if head.StatusCode != 200 || head.Headers["Mcp-Session-Id"] == "" || !strings.Contains(body, `"name":"noted"`) || len(w.tasks) != 0 {
				w.t.Errorf("%+v %s, %d tasks", head, body, len(w.tasks))
			}
		}},
		"http-post-initialized": {with(storage.HTTP, storage.Asleep), nil, status(202, "", "")},
		"http-post-tools-call":  {with(storage.HTTP, storage.Awake), nil, echo},
		"http-post-tools-call to a box that sleeps": {with(storage.HTTP, storage.Asleep), nil, func(w *world, out []byte) {
			echo(w, out)
			if len(w.tasks) != 1 || w.tasks[0][frame.EnvGeneration] != "5" || w.tasks[0]["DORMOUSE_RELAY_URL"] != "wss://relay.example.com/v1" {
				w.t.Errorf("tasks: %v", w.tasks)
			}
		}},
		"http-post-tools-call to a session that is not there": {with("", storage.Awake), nil, status(404, "application/json", "there is no such session")},
		"http-post-tools-list":                                {with(storage.HTTP, storage.Awake), nil, status(200, "application/json", `"id":1`)},
		"http-post-answer":                                    {with(storage.HTTP, storage.Awake), nil, status(202, "", "")},
		"http-post-batch-2025-03-26":                          {with(storage.HTTP, storage.Awake), nil, status(200, "", "Echo: one", "Echo: two")},
		"http-get-listen":                                     {with(storage.HTTP, storage.Awake), nil, status(200, "text/event-stream", "retry: ", "data: \n")},
		"http-get-resume": {func(w *world) {
			with(storage.HTTP, storage.Awake)(w)
			w.append("06bk5gpt3sv7v4m1t7h3c9p5n0", `{"jsonrpc":"2.0","method":"notifications/progress"}`, `{"jsonrpc":"2.0","id":9,"result":{}}`)
		}, nil, status(200, "text/event-stream", "id: 2/06bk5gpt3sv7v4m1t7h3c9p5n0\n", `data: {"jsonrpc":"2.0","id":9,"result":{}}`)},
		"http-get-sse-2024-11-05": {with("", storage.Asleep), nil, status(200, "text/event-stream", "event: endpoint\n", "/message?sessionId=")},
		"http-post-message-2024-11-05": {with(storage.SSE, storage.Asleep), nil, func(w *world, out []byte) {
			status(202, "", "")(w, out)
			if page := w.read(storage.LegacySSE); len(page.Events) != 1 || !strings.Contains(string(page.Events[0].Raw), `"id":5`) {
				w.t.Errorf("the stream has %+v", page.Events)
			}
		}},
		"http-post-discover-2026-07-28": {func(w *world) {
			with("", storage.Asleep)(w)
		}, nil, status(200, "application/json", `"supportedVersions"`, `"name":"noted"`)},
		"http-post-tools-call-2026-07-28": {with("", storage.Awake), nil, echo},
		"http-post-listen-2026-07-28":     {with("", storage.Asleep), nil, status(200, "text/event-stream", "notifications/subscriptions/acknowledged")},
		"http-get-2026-07-28":             {nil, nil, status(405, "application/json", "")},
		"http-put":                        {nil, nil, status(405, "application/json", "this method is not served here")},
		"http-delete": {with(storage.HTTP, storage.Awake), nil, func(w *world, out []byte) {
			status(204, "", "")(w, out)
			if posts := w.posts[runnerConn]; len(posts) != 1 || !strings.Contains(posts[0], `"t":"stop"`) {
				w.t.Errorf("the runner was sent %q", posts)
			}
		}},
		"http-options": {nil, nil, status(204, "", "")},
		"http-post-no-key": {nil, nil, func(w *world, out []byte) {
			head, _ := streamed(w, out)
			if head.StatusCode != 401 || head.Headers["Www-Authenticate"] == "" {
				w.t.Errorf("%+v", head)
			}
		}},
		"http-post-ticket": {nil, nil, status(200, "application/json", `"ticket":"dt_`)},
	}
}

func socketCases() map[string]samCase {
	connected := func(w *world) {
		with(storage.WebSocket, storage.Awake)(w)
		err := w.store.PutConnection(w.t.Context(), storage.Connection{
			ID: clientConn, Session: eventSession, Server: server, Tenant: tenant, Principal: principal, Credential: "example2", Expires: time.Now().Add(time.Hour),
		})
		commontest.OK(w.t, err)
	}
	return map[string]samCase{
		"socket-connect": {nil, nil, func(w *world, out []byte) {
			if a := answered(w, out); a.StatusCode != 200 || a.Headers["Sec-WebSocket-Protocol"] != "mcp" {
				w.t.Errorf("%s", out)
			}
			if c, err := w.store.Connection(w.t.Context(), clientConn); err != nil || c.Principal != principal {
				w.t.Errorf("%+v, %v", c, err)
			}
		}},
		"socket-connect-no-key": {nil, nil, func(w *world, out []byte) {
			if a := answered(w, out); a.StatusCode != 401 {
				w.t.Errorf("%s", out)
			}
		}},
		"socket-initialize": {func(w *world) {
			connected(w)
			w.opened()
		}, nil, func(w *world, out []byte) {
			if a := answered(w, out); a.StatusCode != 200 || !strings.Contains(a.Body, `"name":"noted"`) {
				w.t.Errorf("%s", out)
			}
		}},
		"socket-tools-call": {connected, nil, func(w *world, out []byte) {
			if a := answered(w, out); a.StatusCode != 200 || len(w.posts[runnerConn]) == 0 {
				w.t.Errorf("%s, delivered %q", out, w.posts[runnerConn])
			}
		}},
		"socket-disconnect": {connected, nil, func(w *world, out []byte) {
			if _, err := w.store.Connection(w.t.Context(), clientConn); storage.CodeOf(err) != storage.NotFound {
				w.t.Errorf("%s; the connection's record: %v", out, err)
			}
		}},
		"socket-push": {connected, nil, func(w *world, out []byte) {
			if a := answered(w, out); a.StatusCode != 200 {
				w.t.Errorf("%s", out)
			}
		}},
	}
}

func relayCases() map[string]samCase {
	awake := with(storage.HTTP, storage.Awake)
	nothing := func(w *world, out []byte) {
		if a := answered(w, out); a.StatusCode != 200 || a.Body != "" {
			w.t.Errorf("%s", out)
		}
	}
	return map[string]samCase{
		"relay-connect": {nil, func(w *world, event []byte) []byte {
			return bytes.ReplaceAll(event, []byte("A-PASS"), []byte(w.sealer.Pass(storage.BoxFor(tenant, server))))
		}, nothing},
		"relay-connect without a pass": {nil, nil, func(w *world, out []byte) {
			if a := answered(w, out); a.StatusCode != 401 {
				w.t.Errorf("%s", out)
			}
		}},
		"relay-disconnect": {nil, nil, nothing},
		"relay-hello":      {with(storage.HTTP, storage.Starting), nil, replies(frame.TypeWelcome)},
		"relay-hello for a box that somebody else runs": {func(w *world) {
			awake(w)
			w.change(func(b *storage.Box) { b.Runner, b.Gen = "r10", 5 })
		}, nil, replies(frame.TypeFenced)},
		"relay-pull": {func(w *world) {
			awake(w)
			w.put(storage.Waiting)
			w.dead = true
		}, nil, func(w *world, out []byte) {
			replies(frame.TypePulled)(w, out)
			if posts := w.posts[runnerConn]; len(posts) != 1 || !strings.Contains(posts[0], `"t":"deliver"`) {
				w.t.Errorf("the runner was sent %q", posts)
			}
		}},
		"relay-taken": {awake, realTicket, func(w *world, out []byte) {
			nothing(w, out)
			if it, err := w.store.Item(w.t.Context(), storage.BoxFor(tenant, server), "d1"); err != nil || it.State != storage.Taken {
				w.t.Errorf("%+v, %v", it, err)
			}
		}},
		"relay-events": {func(w *world) {
			awake(w)
			w.put(storage.Taken)
		}, realTicket, func(w *world, out []byte) {
			replies(frame.TypeAck)(w, out)
			if page := w.read("d1"); !page.Final() || string(page.Events[0].Raw) != `{"jsonrpc":"2.0","id":1,"result":{}}` {
				w.t.Errorf("the log has %+v", page.Events)
			}
		}},
		"relay-status": {awake, nil, nothing},
		"relay-part":   {awake, nil, replies(frame.TypePartOK)},
		"relay-whole without its parts": {awake, nil, func(w *world, out []byte) {
			if a := answered(w, out); a.Body != "" {
				w.t.Errorf("%s", out)
			}
		}},
		"relay-bye": {awake, nil, func(w *world, out []byte) {
			replies(frame.TypeByeOK)(w, out)
			if b := w.record(); b.State != storage.Asleep || b.Lost == b.Gen {
				w.t.Errorf("%+v", b)
			}
		}},
	}
}

func sweepCases() map[string]samCase {
	inACall := func(w *world) {
		with(storage.HTTP, storage.Awake)(w)
		w.put(storage.Taken)
	}
	lives := func(w *world, out []byte) {
		if b := w.record(); b.State != storage.Awake || len(w.read("d1").Events) != 0 {
			w.t.Errorf("%s: %+v", out, b)
		}
	}
	lost := func(says string) func(*world, []byte) {
		return func(w *world, out []byte) {
			page := w.read("d1")
			if b := w.record(); b.State != storage.Asleep || b.Lost != 4 || !page.Final() || !strings.Contains(string(page.Events[0].Raw), says) {
				w.t.Errorf("%s: %+v, %+v", out, b, page.Events)
			}
		}
	}
	return map[string]samCase{
		"sweep-schedule": {nil, nil, func(w *world, out []byte) { text(w, out, "null") }},
		"sweep-schedule with a box whose task is gone": {func(w *world) {
			inACall(w)
			w.change(func(b *storage.Box) { b.Changed = time.Now().Add(-time.Hour) })
		}, nil, lost("the box is gone")},
		"sweep-task-provisioning":   {inACall, nil, lives},
		"sweep-task-pending":        {inACall, nil, lives},
		"sweep-task-running":        {inACall, nil, lives},
		"sweep-task-deprovisioning": {inACall, nil, lost("killed by SIGKILL")},
		"sweep-task-killed":         {inACall, nil, lost("killed by SIGKILL")},
		"sweep-task-spot":           {inACall, nil, lost("killed by SIGTERM")},
		"sweep-task-no-image":       {inACall, nil, lost("runtime")},
		"sweep-task-asleep": {with(storage.HTTP, storage.Asleep), nil, func(w *world, out []byte) {
			if b := w.record(); b.Lost != 0 || len(w.tasks) != 0 {
				w.t.Errorf("%s: %+v, %d tasks", out, b, len(w.tasks))
			}
		}},
	}
}

// ---- Checks of what a function answers

type proxyAnswer struct {
	StatusCode int               `json:"statusCode"`
	Headers    map[string]string `json:"headers"`
	Body       string            `json:"body"`
}

// streamed splits the answer of the http function into its head and its body.
func streamed(w *world, out []byte) (head proxyAnswer, body string) {
	w.t.Helper()
	first, rest, found := bytes.Cut(out, make([]byte, 8))
	if err := json.Unmarshal(first, &head); err != nil || !found {
		w.t.Fatalf("no streamed answer, %v: %q", err, out)
	}
	return head, string(rest)
}

// status returns a check for a streamed answer with this status and media type that
// contains all the texts.
func status(code int, media string, texts ...string) func(*world, []byte) {
	return func(w *world, out []byte) {
		w.t.Helper()
		head, body := streamed(w, out)
		if head.StatusCode != code || media != "" && head.Headers["Content-Type"] != media {
			w.t.Errorf("status %d, %q, want %d, %q: %s", head.StatusCode, head.Headers["Content-Type"], code, media, body)
		}
		text(w, []byte(body), texts...)
	}
}

func text(w *world, out []byte, texts ...string) {
	w.t.Helper()
	for _, want := range texts {
		if !bytes.Contains(out, []byte(want)) {
			w.t.Errorf("want %q in %s", want, out)
		}
	}
}

// answered reads the answer of a route.
func answered(w *world, out []byte) (a proxyAnswer) {
	w.t.Helper()
	if err := json.Unmarshal(out, &a); err != nil || a.StatusCode == 0 {
		w.t.Fatalf("no answer of a route, %v: %q", err, out)
	}
	return a
}

// replies returns a check that the answer is a frame of a type.
func replies(want frame.Type) func(*world, []byte) {
	return func(w *world, out []byte) {
		w.t.Helper()
		a := answered(w, out)
		f, err := frametest.Decode([]byte(a.Body))
		if err != nil || f.Type != want || a.StatusCode != 200 {
			w.t.Errorf("a %s frame, %v, want %s: %s", f.Type, err, want, out)
		}
	}
}

// ---- What the store has before an event, and after it

// address returns the address of the one request in the sweep's and the runner's
// events.
func address() storage.Address {
	return storage.Address{
		Session: eventSession, Stream: "d1", Requests: []json.RawMessage{json.RawMessage("1")},
		Box: storage.BoxFor(tenant, server), Again: true,
	}
}

func realTicket(w *world, event []byte) []byte {
	return bytes.ReplaceAll(event, []byte(eventTicket), []byte(w.sealer.Seal(address(), 4)))
}

func (w *world) put(state storage.ItemState) {
	w.t.Helper()
	it := storage.Item{
		Box: storage.BoxFor(tenant, server), ID: "d1", State: state, Address: address(), NotAfter: time.Now().Add(time.Minute), Created: time.Now(),
	}
	if state == storage.Taken {
		it.Gen = 4
	} else {
		it.Raw = []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`)
	}
	if _, err := w.store.PutItem(w.t.Context(), it); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) append(stream storage.StreamID, events ...string) {
	w.t.Helper()
	b := storage.Batch{Session: eventSession, Stream: stream, First: 1, Gen: 4, Seq: 1, Final: true, Expires: time.Now().Add(time.Hour)}
	for _, e := range events {
		b.Events = append(b.Events, []byte(e))
	}
	commontest.OK(w.t, w.store.Append(w.t.Context(), b))
}

func (w *world) record() storage.Box {
	w.t.Helper()
	b, err := w.store.Box(w.t.Context(), storage.BoxFor(tenant, server))
	commontest.OK(w.t, err)
	return b
}

func (w *world) change(f func(*storage.Box)) {
	w.t.Helper()
	b := w.record()
	f(&b)
	commontest.OK(w.t, w.store.SaveBox(w.t.Context(), b))
}

// opened resets the session to the state before its initialize.
func (w *world) opened() {
	w.t.Helper()
	s, _, err := w.store.Load(w.t.Context(), eventSession, storage.BoxFor(tenant, server))
	if err == nil {
		s.State, s.Version, s.Init = storage.Opened, "", nil
		err = w.store.Save(w.t.Context(), s)
	}
	commontest.OK(w.t, err)
}

func (w *world) read(stream storage.StreamID) storage.Page {
	w.t.Helper()
	page, err := w.store.Read(w.t.Context(), eventSession, stream, 0, 10)
	commontest.OK(w.t, err)
	return page
}
