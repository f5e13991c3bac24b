package box

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// behaviour names a variable. If it is set, the test binary is a stdio server that
// behaves as the value says.
const behaviour = "FAKE_SERVER"

// gate names the variable with the file that a server waits for.
const gate = "FAKE_GATE"

// coverage names the variable with the folder to which a binary with coverage writes.
const coverage = "GOCOVERDIR"

// exitAtOnce names the variable that keeps a binary with the race detector from sleeping
// for a second when it exits. The box would take it for a server that does not exit when
// asked.
const exitAtOnce = "GORACE"

func TestMain(m *testing.M) {
	sandbox.Enter(os.Args)
	if how := os.Getenv(behaviour); how != "" {
		(&fake{how: how, in: bufio.NewReaderSize(os.Stdin, 1<<20), asks: map[string]json.RawMessage{}}).serve()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fake is a stdio server. how selects the behaviour of its process. The name of a tool
// selects the behaviour of its tools/call.
type fake struct {
	how  string
	in   *bufio.Reader
	seen [][]byte // all lines so far
	asks map[string]json.RawMessage
}

func (f *fake) serve() {
	switch f.how {
	case "exits":
		fmt.Fprintln(os.Stderr, "first line")
		fmt.Fprintln(os.Stderr, "no module named mcp, key "+os.Getenv("API_KEY"))
		os.Exit(127)
	case "says why on stdout":
		say("reading the settings")
		say("no settings.json, key " + os.Getenv("API_KEY"))
		os.Exit(3)
	case "speaks then exits":
		say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"hello"}}`)
		os.Exit(1)
	case "silent":
		block()
	case "kept":
		sandboxed()
	case "runner": // the process has a box with a server that does not notice when its stdin ends
		runner()
	case "deaf to sigterm":
		signal.Ignore(syscall.SIGTERM)
	}
	for {
		line, err := f.in.ReadBytes('\n')
		if err != nil {
			break
		}
		f.seen = append(f.seen, bytes.TrimSpace(line))
		m, err := wire.Parse(line)
		if err != nil {
			fmt.Fprintln(os.Stderr, "cannot read a line:", err)
			os.Exit(99)
		}
		f.take(m)
	}
	if f.how == "deaf to sigterm" {
		block()
	}
	if f.how == "answers at eof" {
		write(`{"jsonrpc":"2.0","id":` + string(f.asks["last"]) + `,"result":{"at":"eof"}}`) // without a line end
	}
}

// block never returns. Without another goroutine a select would be a deadlock.
func block() {
	for {
		time.Sleep(time.Hour)
	}
}

// runner prints the pid of its server and never ends by itself.
func runner() {
	me, err := os.Executable()
	if err != nil {
		os.Exit(96)
	}
	k := newRecorder()
	b := New(Server{Name: "fake", Command: me, Env: map[string]string{behaviour: "silent"}}, k, nil)
	b.Deliver(frame.Deliver{ID: "d", Session: "s", Raw: []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)})
	for v := range k.calls {
		if s, ok := v.(ProcessStatus); ok && s.State == Started {
			say(strconv.Itoa(s.PID))
		}
	}
}

func (f *fake) take(m wire.Message) {
	if strings.HasPrefix(f.how, "modern") {
		f.takeModern(m)
		return
	}
	if f.how == "dual" {
		f.takeDual(m)
		return
	}
	if strings.HasPrefix(f.how, "lists") && f.takeLists(m) {
		return
	}
	if strings.HasPrefix(f.how, "tasks") {
		f.takeTasks(m)
		return
	}
	f.takeLegacy(m)
}

func (f *fake) takeLegacy(m wire.Message) {
	switch {
	case m.Method == wire.MethodDiscover:
		f.takeProbe(m)
	case m.Method == wire.MethodInitialize:
		f.initialize(m)
	case m.Method == wire.MethodToolsCall:
		name, _ := wire.String(wire.Lookup(m.Params, "name"))
		f.call(name, m, wire.Lookup(m.Params, "arguments"))
	case strings.HasPrefix(m.Method, "test/"): // a tool, but not a tools/call
		f.call(strings.TrimPrefix(m.Method, "test/"), m, nil)
	case m.Kind == wire.Request:
		answer(m.ID, `{"method":"`+m.Method+`"}`)
	case m.Kind == wire.Response:
		if id, ok := f.asks[string(m.ID)]; ok {
			answer(id, `{"answer":`+string(m.Raw)+`}`)
		}
	}
}

func (f *fake) initialize(m wire.Message) {
	switch f.how {
	case "refuses":
		say(string(wire.ErrorResponse(m.ID, &wire.Error{Code: -32602, Message: "bad key " + os.Getenv("API_KEY")})))
		say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	case "reads no call": // nor initialized, which comes before it
		f.welcome(m)
		awaitInput()
		os.Exit(0)
	case "answers too early": // a request it has not got
		say(`{"jsonrpc":"2.0","id":2,"result":"a guess"}`)
		f.welcome(m)
	case "waits for the gate":
		for {
			if _, err := os.Stat(os.Getenv(gate)); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		f.welcome(m)
	case "pings first":
		say(`{"jsonrpc":"2.0","id":"are you there","method":"ping"}`)
		line, _ := f.in.ReadBytes('\n')
		f.seen = append(f.seen, bytes.TrimSpace(line))
		fallthrough
	default:
		f.welcome(m)
	}
}

func (f *fake) welcome(m wire.Message) {
	version, _ := wire.String(wire.Lookup(m.Params, "protocolVersion"))
	if f.how == "announces" {
		answer(m.ID, fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"listChanged":true}},"serverInfo":{"name":"fake","version":"1"}}`, version))
		return
	}
	answer(m.ID, fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"},"pid":%d}`, version, os.Getpid()))
}

func (f *fake) call(name string, m wire.Message, args json.RawMessage) {
	token := wire.Lookup(m.Params, "_meta", "progressToken")
	switch name {
	case "pid":
		answer(m.ID, strconv.Itoa(os.Getpid()))
	case "refused": // its network refuses what the arguments have, and it answers with their answer
		of := struct {
			Hosts  []string
			Answer json.RawMessage
			Exit   bool
		}{}
		if json.Unmarshal(args, &of) != nil {
			os.Exit(95)
		}
		for _, host := range of.Hosts {
			_, _ = os.NewFile(RefusalsFile, "refusals").WriteString("network: " + host + " was refused\n")
		}
		if of.Exit {
			os.Exit(3)
		}
		write(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,` + string(of.Answer[1:]) + "\n")
	case "seen":
		answer(m.ID, `[`+string(bytes.Join(f.seen, []byte(",")))+`]`)
	case "env":
		all, _ := json.Marshal(os.Environ())
		answer(m.ID, string(all))
	case "cwd":
		dir, _ := os.Getwd()
		answer(m.ID, strconv.Quote(dir))
	case "say": // arguments is a text; the server writes it with $ID and $TOKEN replaced, and nothing else
		text, _ := wire.String(args)
		write(strings.NewReplacer("$ID", string(m.ID), "$TOKEN", string(token), `\xff`, "\xff").Replace(text))
	case "hang":
	case "ask": // arguments is the id of the question
		f.asks[string(args)] = m.ID
		say(string(wire.NewRequest(args, wire.MethodCreateMessage, json.RawMessage(`{"x":1}`))))
	case "big":
		n, _ := strconv.Atoi(string(args))
		const part = "aé漢😀z" // of one to four bytes, so the borders of buffers fall inside characters
		answer(m.ID, `"`+strings.Repeat(part, n/len(part)+1)+`"`)
	case "die":
		fmt.Fprintln(os.Stderr, "out of cheese")
		os.Exit(3)
	case "last": // arguments is the exit code; the next request is not read
		answer(m.ID, `{}`)
		awaitInput()
		code, _ := strconv.Atoi(string(args))
		os.Exit(code)
	case "exit":
		os.Exit(0)
	case "die by signal":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		block()
	case "close stdout":
		_ = os.Stdout.Close()
		block()
	case "stop reading":
		answer(m.ID, `{}`)
		block()
	case "answer at eof":
		f.asks["last"] = m.ID
	case "fork": // a child in the same group that holds no pipe of ours
		answer(m.ID, strconv.Itoa(sleeper(false)))
	case "leave group": // a child out of the group that holds our stdout
		pid := sleeper(true)
		answer(m.ID, strconv.Itoa(pid))
		os.Exit(0)
	default:
		answer(m.ID, `{"echo":`+cmp.Or(string(args), "null")+`}`)
	}
}

func awaitInput() {
	in := []unix.PollFd{{Events: unix.POLLIN}}
	for n := 0; n == 0; {
		n, _ = unix.Poll(in, -1)
	}
}

func sleeper(away bool) int {
	c := exec.CommandContext(context.Background(), "/bin/sleep", "600")
	if away {
		c.Stdout = os.Stdout
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	if err := c.Start(); err != nil {
		os.Exit(98)
	}
	return c.Process.Pid
}

// write writes a text to stdout unchanged. It ends the server if the reader is gone.
func write(text string) {
	if _, err := os.Stdout.WriteString(text); err != nil {
		os.Exit(97)
	}
}

func say(line string) { write(line + "\n") }

func answer(id json.RawMessage, result string) {
	say(string(wire.ResultResponse(id, json.RawMessage(result))))
}

// recorder is a Sink that keeps everything.
type recorder struct {
	calls chan any // the calls as values: Event, ProcessStatus, Status; large enough for any test
	past  []any
	block chan struct{} // not nil: calls wait for it to be closed
}

func newRecorder() *recorder { return &recorder{calls: make(chan any, 10000)} }

func (r *recorder) put(v any) {
	if r.block != nil {
		<-r.block
	}
	r.calls <- v
}

func (r *recorder) Event(e frame.Event)     { r.put(e) }
func (r *recorder) Process(s ProcessStatus) { r.put(s) }
func (r *recorder) Status(s frame.Status)   { r.put(s) }

// isHandshake reports whether the box reports the answer of a process to initialize.
func isHandshake(s frame.Status) bool { return s.Detail != "" }

// patience is how long a test waits for an event that must come. Only a failing test waits
// that long.
const patience = 30 * time.Second

// find returns the first call that want accepts, and removes it. It waits if there is none
// yet.
func find[T any](t *testing.T, r *recorder, what string, want func(T) bool) T {
	t.Helper()
	for i, v := range r.past {
		if x, ok := v.(T); ok && want(x) {
			r.past = append(r.past[:i:i], r.past[i+1:]...)
			return x
		}
	}
	deadline := time.After(patience)
	for {
		select {
		case v := <-r.calls:
			if x, ok := v.(T); ok && want(x) {
				return x
			}
			r.past = append(r.past, v)
		case <-deadline:
			for _, v := range r.past {
				t.Logf("%.500s", fmt.Sprintf("%T %+v", v, v))
			}
			t.Fatalf("%s did not come after the above", what)
		}
	}
}

func (r *recorder) final(t *testing.T, stream string) frame.Event {
	t.Helper()
	return find(t, r, "the end of "+stream, func(e frame.Event) bool { return string(e.Stream) == stream && e.Final })
}

func (r *recorder) event(t *testing.T, stream string) frame.Event {
	t.Helper()
	return find(t, r, "an event of "+strconv.Quote(stream), func(e frame.Event) bool { return string(e.Stream) == stream })
}

func (r *recorder) state(t *testing.T, s ProcessState) ProcessStatus {
	t.Helper()
	return find(t, r, "the report "+string(s), func(p ProcessStatus) bool { return p.State == s })
}

// Era returns which protocol versions the box takes the server for.
func (r *rig) Era() wire.Era {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.era
}

// none fails if find has passed over an event of the stream. The events that the test has
// waited for show how far the box has come.
func (r *recorder) none(t *testing.T, stream string) {
	t.Helper()
	for _, v := range r.past {
		if e, ok := v.(frame.Event); ok && string(e.Stream) == stream {
			t.Errorf("stream %q has an event: %.300s", stream, e.Raw)
		}
	}
}

// hurry makes the box kill servers soon if they do not exit by themselves.
func (r *rig) hurry() {
	r.grace = proc.Grace{Stdin: 100 * time.Millisecond, Term: 200 * time.Millisecond}
}

type rig struct {
	*Box
	*recorder
	t *testing.T
	n int
}

// beside has the tests that run beside others, and those that must not.
var beside sync.Map

// newRig makes a box with a fake server. Its test runs in parallel: most of its time it waits for
// processes.
func newRig(t *testing.T, how string, change ...func(*Server)) *rig {
	t.Helper()
	if _, known := beside.LoadOrStore(t, true); !known {
		t.Parallel()
	}
	s := Server{Name: "fake", Command: self(t), ShowOutput: true, Env: map[string]string{behaviour: how, exitAtOnce: "atexit_sleep_ms=0"}}
	if testing.CoverMode() != "" {
		s.Env[coverage] = t.TempDir() // or the server complains on its stderr
	}
	for _, c := range change {
		c(&s)
	}
	r := &rig{recorder: newRecorder(), t: t}
	r.Box = New(s, r.recorder, nil)
	r.draw = counting()
	// A server that exits when asked has time enough, even on a slow machine. A test with
	// a server that does not exit sets its own times.
	r.grace = proc.Grace{Stdin: patience, Term: patience}
	t.Cleanup(func() {
		// The context is over, so Close kills the processes. Its error says only that.
		_ = r.Close(t.Context(), 0)
		commontest.Eventually(t, "the processes are gone", func() bool { return len(r.Processes()) == 0 })
	})
	return r
}

// self returns the path of the test binary, which is the fake server.
func self(t testing.TB) string {
	t.Helper()
	me, err := os.Executable()
	commontest.OK(t, err)
	return me
}

// counting draws the numbers 1, 2, 3 and so on, so that tests can name the number in a
// message of the process.
func counting() func() int64 {
	last := int64(0)
	return func() int64 {
		last++
		return last
	}
}

// deliver sends a message in session "s", with the ticket "t1", "t2" and so on.
func (r *rig) deliver(raw string) string {
	return r.as("s", raw, func(d *frame.Deliver) { d.Ticket = "t" + strconv.Itoa(r.n) })
}

// as sends a message in a session and returns the name of its stream. The principal is the part
// of the session's name before a slash.
func (r *rig) as(session, raw string, change ...func(*frame.Deliver)) string {
	r.n++
	d := frame.Deliver{ID: storage.StreamID("d" + strconv.Itoa(r.n)), Session: storage.ID(session), Ticket: "of " + session, Raw: []byte(raw)}
	if principal, _, ok := strings.Cut(session, "/"); ok {
		d.Principal = principal
	}
	for _, f := range change {
		f(&d)
	}
	r.Deliver(d)
	return string(d.ID)
}

func (r *rig) deliverIn(session, tool string) string {
	return r.as(session, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q}}`, r.n, tool))
}

func (r *rig) call(id, tool, arguments string) string {
	return r.deliver(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, tool, arguments))
}

// result waits for the end of a stream and returns its result.
func (r *rig) result(stream string) json.RawMessage {
	r.t.Helper()
	e := r.final(r.t, stream)
	m, err := wire.Parse(e.Raw)
	if err != nil || m.Result == nil {
		r.t.Fatalf("stream %s ended with %s (%v), want a result", stream, e.Raw, err)
	}
	return m.Result
}

// idle reports whether the box is idle.
func (r *rig) idle() bool {
	_, idle := r.IdleSince()
	return idle
}

// another checks that a result is of another process than an earlier one.
func (r *rig) another(earlier, now json.RawMessage) {
	r.t.Helper()
	if string(now) == string(earlier) {
		r.t.Errorf("process %s answers again", now)
	}
}

// failed is the error with which a stream has ended.
type failed struct {
	ID      string
	Message string
	Code    wire.Code
	Failure
}

// failure waits for the end of a stream and returns its error.
func (r *rig) failure(stream string) failed {
	r.t.Helper()
	e := r.final(r.t, stream)
	var f struct {
		ID    json.RawMessage
		Error *struct {
			Code    wire.Code
			Message string
			Data    Failure
		}
	}
	if err := json.Unmarshal(e.Raw, &f); err != nil || f.Error == nil {
		r.t.Fatalf("stream %s ended with %s (%v), want an error", stream, e.Raw, err)
	}
	return failed{string(f.ID), f.Error.Message, f.Error.Code, f.Error.Data}
}

// fails checks the phase and a part of the message of the error with which a stream ends. An empty
// phase may be any.
func (r *rig) fails(stream string, phase Phase, says string) failed {
	r.t.Helper()
	f := r.failure(stream)
	if phase != "" && f.Phase != phase || !strings.Contains(f.Message, says) {
		r.t.Errorf("it ended with %+v, want phase %q and %q", f, phase, says)
	}
	return f
}

func (r *rig) isOpen(session, id string) bool {
	return slices.ContainsFunc(r.Open(), func(st *stream) bool { return st.session.id == session && st.id == id })
}

// seen asks the server for the lines it has read.
func (r *rig) seen() []json.RawMessage {
	r.t.Helper()
	lines := r.lines("s")
	return lines[:len(lines)-1] // without this question
}

// lines is seen for a session, with the question.
func (r *rig) lines(session string) (lines []json.RawMessage) {
	r.t.Helper()
	question := r.as(session, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"test/seen"}`, 100000+r.n))
	commontest.OK(r.t, json.Unmarshal(r.result(question), &lines))
	return lines
}

func methods(lines []json.RawMessage) []string {
	var out []string
	for _, l := range lines {
		name, ok := wire.String(wire.Lookup(l, "method"))
		if !ok {
			name = "response"
		}
		out = append(out, name)
	}
	return out
}

// left returns all calls that no test has taken so far.
func (r *recorder) left() []any {
	for {
		select {
		case v := <-r.calls:
			r.past = append(r.past, v)
		default:
			return r.past
		}
	}
}

// Open lists the streams of requests in flight, in the order in which they began.
func (b *Box) Open() []*stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*stream
	for _, s := range b.sessions {
		all = append(all, inflight(b.processes(s), s)...)
	}
	slices.SortFunc(all, func(x, y *stream) int { return cmp.Or(x.came.Compare(y.came), cmp.Compare(x.id, y.id)) })
	return all
}

// Processes lists the running processes by name, with those that are being stopped.
func (b *Box) Processes() []ProcessStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []ProcessStatus
	for _, id := range slices.Sorted(maps.Keys(b.groups)) {
		for _, p := range b.groups[id].live {
			if p.child != nil {
				all = append(all, p.status(p.running(), nil))
			}
		}
	}
	return all
}
