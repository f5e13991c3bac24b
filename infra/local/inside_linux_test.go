package local

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// roleEnv has the test program play a stdio server, or a machine that a test kills.
const roleEnv = "DORMOUSE_TEST_ROLE"

// runnerRole as the first argument has the test program play the runner of a box.
const runnerRole = "runner"

func TestMain(m *testing.M) {
	sandbox.Enter(os.Args)
	if len(os.Args) > 1 && os.Args[1] == runnerRole {
		runner.Main()
		os.Exit(0)
	}
	switch os.Getenv(roleEnv) {
	case "server":
		playServer()
	case "machine":
		playMachine()
	default:
		os.Exit(m.Run())
	}
}

// playServer is a stdio server. Its tool pid returns its pid. spawn starts a process in a
// session of its own and returns the pid of that. hold tells its parent by SIGUSR1, and does not
// answer. With a file as its argument playServer has one more tool, of the name in the file. An
// empty file is a mistake in line 1.
func playServer() {
	capabilities, more := `{"tools":{}}`, ""
	if len(os.Args) > 1 {
		name, _ := os.ReadFile(os.Args[1])
		if len(name) == 0 {
			fmt.Fprintf(os.Stderr, "Traceback (most recent call last):\n  File %q, line 1, in <module>\nSyntaxError: it is empty\n", os.Args[1])
			os.Exit(1)
		}
		capabilities, more = `{"tools":{"listChanged":true}}`, `,{"name":"`+string(name)+`","inputSchema":{"type":"object"}}`
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		m, err := wire.Parse(in.Bytes())
		if err != nil || m.Kind != wire.Request {
			continue
		}
		result := `{}`
		switch m.Method {
		case wire.MethodInitialize:
			result = `{"protocolVersion":"2025-11-25","capabilities":` + capabilities + `,"serverInfo":{"name":"plays","version":"1"}}`
		case wire.MethodToolsList:
			result = `{"tools":[{"name":"pid","inputSchema":{"type":"object"}},{"name":"spawn","inputSchema":{"type":"object"}},{"name":"hold","inputSchema":{"type":"object"}}` + more + `]}`
		case wire.MethodToolsCall:
			pid := os.Getpid()
			switch tool, _ := wire.String(wire.Lookup(m.Params, "name")); tool {
			case "hold":
				_ = syscall.Kill(os.Getppid(), syscall.SIGUSR1) // the test, which waits for the call
				continue
			case "spawn":
				child := exec.Command("sleep", "600") //nolint:noctx // the box ends it
				child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
				if child.Start() != nil {
					os.Exit(1)
				}
				pid = child.Process.Pid
			}
			result = fmt.Sprintf(`{"content":[{"type":"text","text":"%d"}]}`, pid)
		}
		_, _ = fmt.Fprintln(os.Stdout, string(wire.ResultResponse(m.ID, json.RawMessage(result))))
	}
}

// stdioServers returns the servers file with two servers that the test program plays.
func stdioServers(t testing.TB) []byte {
	t.Helper()
	own := map[string]any{"command": os.Args[0], "env": map[string]string{roleEnv: "server"}}
	text, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"one": own, "two": own}})
	commontest.OK(t, err)
	return text
}

// logged is the log of a machine. It panics once in the goroutine of a box that logs the
// mark.
type logged struct {
	lines chan string // gets the lines that there is room for; may be nil
	mark  atomic.Pointer[string]
}

func (l *logged) Write(line []byte) (int, error) {
	if mark := l.mark.Load(); mark != nil && bytes.Contains(line, []byte(*mark)) && l.mark.CompareAndSwap(mark, nil) {
		panic("the test lets the box panic")
	}
	select {
	case l.lines <- string(line):
	default:
	}
	return len(line), nil
}

// client is an HTTP client of one server.
type client struct {
	t       testing.TB
	url     string
	session string
}

func open(t testing.TB, url string) *client {
	t.Helper()
	c := &client{t: t, url: url}
	c.answer(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

// post sends a message, and returns what comes back.
func (c *client) post(body string) string {
	c.t.Helper()
	r, err := http.NewRequestWithContext(context.WithoutCancel(c.t.Context()), http.MethodPost, c.url, strings.NewReader(body))
	commontest.OK(c.t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if c.session != "" {
		r.Header.Set("Mcp-Session-Id", c.session)
		r.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	}
	res, err := http.DefaultClient.Do(r)
	commontest.OK(c.t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	commontest.Check(c.t, err)
	c.session = cmp.Or(c.session, res.Header.Get("Mcp-Session-Id"))
	return string(text)
}

// answer returns the only response to a message, in JSON or in an event stream.
func (c *client) answer(message string) wire.Message {
	c.t.Helper()
	text := c.post(message)
	for line := range strings.Lines(text) {
		if m, err := wire.Parse([]byte(strings.TrimPrefix(strings.TrimSpace(line), "data: "))); err == nil && m.Kind == wire.Response {
			return m
		}
	}
	c.t.Errorf("no answer: %s", text)
	return wire.Message{}
}

func call(tool string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":{}}}`
}

// pid returns the result of a tool.
func (c *client) pid(tool string) int {
	c.t.Helper()
	var r struct{ Content []struct{ Text string } }
	m := c.answer(call(tool))
	if err := json.Unmarshal(m.Result, &r); err != nil || len(r.Content) != 1 {
		c.t.Fatalf("the answer is %s", m.Raw)
	}
	pid, _ := strconv.Atoi(r.Content[0].Text)
	return pid
}

// withStdio starts a machine with the two servers.
func withStdio(t testing.TB, log io.Writer, change ...func(*Config)) *machine {
	t.Helper()
	return started(t, func(c *Config) {
		for _, f := range change {
			f(c)
		}
		commontest.OK(t, os.WriteFile(c.Servers, stdioServers(t), 0o600))
		c.Environ = append(os.Environ(), "DORMOUSE_CACHE="+filepath.Join(t.TempDir(), "cache"))
		c.Log = log
	})
}

// A server without limits is a child of this program, in a session of its own. Operators see
// it as the process of its box.
func TestABoxWithoutLimitsIsInside(t *testing.T) {
	m := withStdio(t, io.Discard)
	pid := open(t, m.public.address(0)+"/one/mcp").pid("pid")
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	commontest.OK(t, err)
	commontest.EqualIn(t, "the parent of the server is", fmt.Sprint(os.Getpid()), strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[1])
	if sid, err := unix.Getsid(pid); err != nil || sid != pid || !proc.Started(pid) {
		t.Errorf("its session is %d, %v", sid, err)
	}
	var s api.Status
	if _, err := operate(t, m.folder.Path, http.MethodGet, "processes", &s); err != nil || len(s.Boxes) != 1 {
		t.Fatalf("what runs: %+v, %v", s, err)
	}
	if b := s.Boxes[0]; b.PID != os.Getpid() || len(b.Processes) != 1 || b.Processes[0].PID != pid || len(s.Processes) != 1 || s.Processes[0].Memory == 0 {
		t.Errorf("what runs: %+v", s)
	}
}

// The end of a preparation ends no process that serves a client.
func TestAPreparationEndsNoProcessOfAClient(t *testing.T) {
	m := withStdio(t, io.Discard)
	c := open(t, m.public.address(0)+"/one/mcp")
	pid := c.pid("pid")
	if _, err := m.prepare(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	commontest.EqualIn(t, "the process is", pid, c.pid("pid"))
}

// A confined process leads a session of its own, and counts to its box like one in the runner's.
func TestAConfinedProcessIsOneOfItsBox(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	commontest.OK(t, cmd.Start())
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }() // the kill is its end
	pid := cmd.Process.Pid
	for until := time.Now().Add(10 * time.Second); ; {
		all := membersOf(fleet.Status{ID: "process/x", PID: -1}, []api.Process{{PID: pid, State: "ready"}})
		if len(all) == 1 && memoryOf(all, pid) > 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%+v", all)
		}
	}
}

// A machine whose memory is full refuses a new session in the same words to its client and to the
// operator, in the events of the terminal and in the list of servers. Sessions with a process go on.
func TestAMachineWhoseMemoryIsFullRefusesANewSession(t *testing.T) {
	var free atomic.Int64
	free.Store(1 << 40)
	var events commontest.Lines
	m := withStdio(t, io.Discard, func(c *Config) {
		c.JSON = &events
		c.memory = func() (int64, int64, bool) { return free.Load(), 1 << 40, true }
	})
	before := open(t, m.public.address(0)+"/one/mcp")
	pid := before.pid("pid")
	free.Store(0)
	answer := open(t, m.public.address(0)+"/two/mcp").answer(call("pid"))
	message, _ := wire.String(wire.Lookup(answer.Error, "message"))
	message = strings.TrimPrefix(message, `server "two": `)
	if phase, _ := wire.String(wire.Lookup(answer.Error, "data", "phase")); phase != string(box.PhaseSessionCreate) {
		t.Errorf("the client gets %s", answer.Raw)
	}
	commontest.EqualIn(t, "the process of the session of before", pid, before.pid("pid"))
	commontest.EqualIn(t, "the list says", message, m.failed.reasons()["two"])
	if text, _ := json.Marshal(message); !strings.Contains(events.Take(), string(text)) {
		t.Errorf("no event says %s", text)
	}
	free.Store(1 << 40)
	if open(t, m.public.address(0)+"/two/mcp").pid("pid") == 0 || m.failed.reasons()["two"] != "" {
		t.Error("it does not start with memory")
	}
}

// On a machine whose memory is full, a box that is a process is asked to yield before another one is
// refused, unless it was heard of in the last ten seconds.
func TestABoxThatIsAProcessIsAskedToYield(t *testing.T) {
	var free atomic.Int64
	free.Store(1 << 40)
	log := &logged{lines: make(chan string, 10_000)}
	m := withStdio(t, log, func(c *Config) {
		c.memory = func() (int64, int64, bool) { return free.Load(), 1 << 40, true }
		c.Apart, c.Runner = true, []string{os.Args[0], runnerRole}
	})
	c := open(t, m.public.address(0)+"/one/mcp")
	pid := c.pid("pid")
	v, _ := m.neighbours.Load(storage.BoxFor("local", "one"))
	one, ok := v.(*neighbour)
	if !ok {
		t.Fatal("the memory does not know the box")
	}
	refused := func() {
		t.Helper()
		free.Store(0)
		defer free.Store(1 << 40)
		if answer := open(t, m.public.address(0)+"/two/mcp").answer(call("pid")); answer.Error == nil {
			t.Errorf("another box has started: %s", answer.Raw)
		}
	}
	refused()
	asked := `"msg":"the host needs memory"`
	for len(log.lines) > 0 {
		if line := <-log.lines; strings.Contains(line, asked) {
			t.Errorf("it was asked at once: %s", line)
		}
	}
	one.heard.Store(time.Now().Add(-time.Minute).UnixNano())
	refused()
	for line := range log.lines {
		if strings.Contains(line, asked) {
			break
		}
	}
	commontest.EqualIn(t, "a process that was used just now", pid, c.pid("pid"))
	commontest.OK(t, m.boxes.Stop(t.Context(), one.task, "the test"))
	<-one.ended
}

// A panic ends the box in whose code it is: its call ends with an unknown outcome, its
// processes are killed, and its session goes on in the next box. Another box does not notice.
func TestAPanicEndsItsBoxAlone(t *testing.T) {
	for name, mark := range map[string]string{
		"of the box, which logs the start of a process":  `"state":"started"`,
		"of the box, which logs the handshake":           `"state":"ready"`,
		"of what measures how long a process has needed": `"msg":"server started"`,
	} {
		t.Run(name, func(t *testing.T) {
			log := &logged{}
			m := withStdio(t, log)
			struck, other := open(t, m.public.address(0)+"/one/mcp"), open(t, m.public.address(0)+"/two/mcp")
			before, neighbour, child := struck.pid("pid"), other.pid("pid"), struck.pid("spawn")
			holds := make(chan os.Signal, 1)
			signal.Notify(holds, syscall.SIGUSR1)
			defer signal.Stop(holds)
			ended := make(chan wire.Message, 1)
			go func() { ended <- struck.answer(call("hold")) }()
			<-holds
			log.mark.Store(&mark)
			strange := make(chan wire.Message, 1)
			go func() { // needs another process of the box
				c := open(t, m.public.address(0)+"/one/mcp")
				strange <- c.answer(call("pid"))
			}()
			if m := <-ended; string(wire.Lookup(m.Error, "code")) != fmt.Sprint(wire.CodeOutcomeUnknown) {
				t.Errorf("the call in flight ended with %s", m.Raw)
			}
			<-strange
			for _, pid := range []int{before, child} {
				if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z")) {
					t.Errorf("process %d of the box is still there", pid)
				}
			}
			if now := struck.pid("pid"); now == before {
				t.Errorf("the session still has process %d", now)
			}
			commontest.EqualIn(t, "the process of another box", neighbour, other.pid("pid"))
		})
	}
}
