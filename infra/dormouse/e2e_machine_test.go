//go:build e2e

package dormouse_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

const (
	// sleepAfter is how long a function is idle until it ends, and idle is --idle, of
	// machines that should sleep soon.
	sleepAfter = time.Second
	idle       = 2 * time.Second
	// asleepWithin is the longest time from the last message until no process runs. The
	// box is idle and lingers for 5 s. Then the function that took its bye is idle too.
	// The rest is for slow machines.
	asleepWithin = idle + 5*time.Second + sleepAfter + 30*time.Second
)

// These functions return the programs of testdata, and the keeper. modern is a server of
// 2026-07-28 only.
var (
	stdio, rogue, modern = built("stdio", "./testdata/stdio"), built("rogue", "./testdata/rogue"), built("modern", "./testdata/modern")
	keeper               = built(runner.Keeper, ".", "-C", "../keeper/dormouse-keeper")
)

// built returns a function that returns a program, which its first call builds.
func built(name, from string, flags ...string) func(*testing.T) string {
	var once sync.Once
	var out []byte
	var err error
	return func(t *testing.T) string {
		t.Helper()
		path := filepath.Join(stdioFolder, name)
		once.Do(func() {
			build := exec.CommandContext(t.Context(), "go", slices.Concat([]string{"build"}, flags, []string{"-o", path, from})...)
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			out, err = build.CombinedOutput()
		})
		if err != nil {
			t.Fatalf("build %s: %v: %s", from, err, out)
		}
		return path
	}
}

// These are set by TestMain before any test runs.
var (
	stdioFolder string
	programs    string // the folder of make build's programs
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if programs, err = filepath.Abs("../../bin"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if stdioFolder, err = os.MkdirTemp("", "dormouse-e2e"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(stdioFolder) }() // an error cannot be handled at the end
		// Servers in a sandbox run as other users, who must be able to enter the folder.
		if err := os.Chmod(stdioFolder, 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// servers holds the flags of the test server by name, for mcpServers.
type servers map[string][]string

func (s servers) file(t *testing.T) map[string]any {
	t.Helper()
	file := map[string]any{}
	for name, flags := range s {
		file[name] = map[string]any{"command": stdio(t), "args": append([]string{"-name", name}, flags...)}
	}
	return file
}

// machine is a dormouse run with a data folder of its own. A test may start it again after
// it has ended.
type machine struct {
	t       *testing.T
	data    string
	servers string // the servers file
	calls   string // of a recorded machine: the file of the tools that were run
	tmp     string // TMPDIR of every process, which identifies the machine's own

	env []string // in addition to the test's environment
	// programs is true if the functions are programs of their own; see asPrograms. emulator
	// says how they run.
	programs bool
	emulator emulator.Options
	runner   bool     // boxes are processes; see withRunners
	own      string   // an author's program with native servers, "" for none; its name is dormouse
	flags    []string // of the last start
	program  string   // instead of the built one
	// prepare changes dormouse run before it starts; nil for nothing.
	prepare func(*exec.Cmd)

	cmd    *exec.Cmd
	exited chan struct{} // closed when the program has ended; cmd.ProcessState is set then
	out    *journal      // stdout
	log    *journal      // stderr
	urls   map[string]string
	ws     map[string]string // where WebSocket clients connect, by server
}

// newMachine returns a machine that hosts these servers. It is not started.
func newMachine(t *testing.T, hosted servers) *machine {
	t.Helper()
	return machineOf(t, hosted.file(t))
}

// recorded returns a machine that hosts the server one, which writes down the tools that it
// runs.
func recorded(t *testing.T) *machine {
	t.Helper()
	calls := filepath.Join(t.TempDir(), "calls")
	m := newMachine(t, servers{"one": {"-calls", calls}})
	m.calls = calls
	return m
}

// machineOf returns a machine with the given content of mcpServers. It is not
// started.
func machineOf(t *testing.T, file map[string]any) *machine {
	t.Helper()
	text, err := json.MarshalIndent(map[string]any{"mcpServers": file}, "", "  ")
	commontest.OK(t, err)
	m := &machine{t: t, data: t.TempDir(), tmp: t.TempDir(), programs: os.Getenv(functionsVariable) == "process"}
	m.emulator = emulator.Options{Programs: programs, SleepAfter: 10 * time.Second, Boxes: os.Getenv(boxesVariable) == "lambda"}
	m.servers = filepath.Join(m.tmp, "servers.json")
	write(t, m.servers, string(text))
	t.Cleanup(m.end)
	return m
}

// ours gives the servers file an x-dormouse.
func (m *machine) ours(section string) {
	m.t.Helper()
	write(m.t, m.servers, strings.Replace(read(m.t, m.servers), "{", `{"x-dormouse": `+section+`,`, 1))
}

// functionsVariable says how the machines of all tests execute functions: "process" for
// programs, "cold" for new handlers for each message, or inside by default.
const functionsVariable = "DORMOUSE_TEST_FUNCTIONS"

// boxesVariable says where the boxes of machines with function programs run: "lambda" for
// invocations, or programs by default.
const boxesVariable = "DORMOUSE_TEST_BOXES"

// asPrograms makes the machine execute the functions as programs of their own, for
// tests that kill one of them.
func (m *machine) asPrograms() *machine {
	m.programs = true
	return m
}

// invokes reports whether the machine's boxes run as invocations.
func (m *machine) invokes() bool { return m.programs && m.emulator.Boxes }

// host returns the one process with the runner of a server without limits.
func (m *machine) host() process {
	if m.programs || m.runner {
		return m.only("runner")
	}
	return m.only("dormouse")
}

func (m *machine) in(t *testing.T) *machine {
	part := *m
	part.t = t
	return &part
}

// start starts dormouse run and returns when it is ready.
func (m *machine) start(flags ...string) {
	m.t.Helper()
	m.run(append([]string{"--json", "--log-format=json"}, flags...)...)
	m.ready()
}

// ready returns when all servers of the file are announced.
func (m *machine) ready() {
	m.t.Helper()
	m.await(patience, "the endpoint is ready", func(e event) bool {
		if e.Kind == "ready" {
			m.urls[e.Name], m.ws[e.Name] = e.URL, e.SocketURL
		}
		return len(m.urls) == m.hosted()
	})
}

// run starts dormouse run and does not wait until it is ready.
func (m *machine) run(flags ...string) {
	m.t.Helper()
	m.flags = flags
	all := append([]string{"--listen", "127.0.0.1:0", "--servers", m.servers}, flags...)
	if m.runner && !m.programs {
		all = append(all, "--runner", filepath.Join(programs, "runner"))
	}
	if !m.programs && os.Getenv(functionsVariable) == "cold" {
		all = append(all, "--cold")
	}
	cmd := m.command("run", all...)
	if m.prepare != nil {
		m.prepare(cmd)
	}
	m.execute(cmd)
}

// execute starts a command line that is dormouse run.
func (m *machine) execute(cmd *exec.Cmd) {
	m.t.Helper()
	m.out, m.log = newJournal(), newJournal()
	m.urls, m.ws = map[string]string{}, map[string]string{}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = m.out, m.log, 5*time.Second
	if err := cmd.Start(); err != nil {
		m.t.Fatalf("%v; run make build first", err)
	}
	exited := make(chan struct{})
	m.cmd, m.exited = cmd, exited
	go func() {
		defer close(exited)
		_ = cmd.Wait() // how it ended is in ProcessState
	}()
}

// command returns a command line of the built program with this machine's folders.
func (m *machine) command(verb string, args ...string) *exec.Cmd {
	m.t.Helper()
	program, options := filepath.Join(programs, "dormouse"), m.emulator
	switch {
	case m.programs:
		program, options.Own = filepath.Join(programs, "emulator", "dormouse"), m.own
	case m.own != "":
		program = m.own
	}
	if slices.Contains(args, "--idle") {
		options.SleepAfter = sleepAfter
	}
	how, err := json.Marshal(options)
	commontest.OK(m.t, err)
	cmd := exec.Command(cmp.Or(m.program, program), slices.Concat(strings.Fields(verb), []string{"--data", m.data}, args)...) //nolint:noctx // ended by end
	cmd.Env = append(os.Environ(), "TMPDIR="+m.tmp, "DORMOUSE_CACHE="+filepath.Join(stdioFolder, "cache"), "DORMOUSE_EMULATOR="+string(how))
	cmd.Env = append(cmd.Env, m.env...)
	return cmd
}

// hosted returns how many servers of the file can be hosted.
func (m *machine) hosted() int {
	c, _, err := serversfile.LoadHere(m.servers, func(name string) (string, bool) {
		for _, kv := range m.env {
			if value, ok := strings.CutPrefix(kv, name+"="); ok {
				return value, true
			}
		}
		return os.LookupEnv(name)
	})
	commontest.OK(m.t, err)
	return len(c.Names())
}

// end stops the machine when a test is over. If the machine leaves any process or file
// behind, end fails the test.
func (m *machine) end() {
	if m.cmd == nil {
		return
	}
	if m.running() {
		_ = m.cmd.Process.Signal(os.Interrupt) // it may end at this moment
		select {
		case <-m.exited:
		case <-time.After(25 * time.Second):
			m.t.Error("dormouse run did not end within 25 s of an interrupt")
		}
	}
	if left := m.processes(); len(left) > 0 {
		m.t.Errorf("left behind: %v", left)
		m.kill(left...)
		<-m.exited
	}
	if m.t.Failed() {
		m.t.Logf("events:\n%s\nlog:\n%s", m.out.tail(60), m.log.tail(60))
	}
}

func (m *machine) running() bool {
	select {
	case <-m.exited:
		return false
	default:
		return true
	}
}

// interrupt sends the signal of Ctrl-C and returns how the program ended.
func (m *machine) interrupt() *os.ProcessState {
	m.t.Helper()
	commontest.OK(m.t, m.cmd.Process.Signal(os.Interrupt))
	return m.ended(patience)
}

// ended waits for the end of the program.
func (m *machine) ended(within time.Duration) *os.ProcessState {
	m.t.Helper()
	select {
	case <-m.exited:
	case <-time.After(within):
		m.t.Fatalf("dormouse run did not end within %s", within)
	}
	return m.cmd.ProcessState
}

type process struct {
	pid     int
	program string // dormouse, http, socket, relay, sweep, runner or stdio
	server  string // of a stdio process: its -name
	parent  int
}

func (p process) String() string { return fmt.Sprintf("%s %s (pid %d)", p.program, p.server, p.pid) }

// processes lists the processes of this machine, including dormouse itself and
// processes that lost their parents. All of them have its TMPDIR in their
// environment.
func (m *machine) processes() []process {
	m.t.Helper()
	entries, err := os.ReadDir("/proc")
	commontest.OKIn(m.t, "these tests count processes in /proc", err)
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A process that has ended has no environment to read, even before its parent
		// waits for it.
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil && !m.hidden(e.Name()) || err == nil && !m.temporary(string(env)) {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(string(line), "\x00")
		if err != nil || len(args) > 1 && args[1] == "ps" {
			continue
		}
		p := process{pid: pid, program: filepath.Base(args[0]), parent: parentOf(e.Name())}
		if p.program == "dormouse" && len(args) > 1 && args[1] == "runner" {
			p.program = "runner"
		}
		if i := slices.Index(args, "-name"); p.program == "stdio" && i > 0 {
			p.server = args[i+1]
		}
		all = append(all, p)
	}
	return all
}

// temporary reports whether an environment has the TMPDIR of this machine, or of a box that
// runs as an invocation.
func (m *machine) temporary(env string) bool {
	return slices.ContainsFunc(strings.Split(env, "\x00"), func(v string) bool {
		return v == "TMPDIR="+m.tmp || strings.HasPrefix(v, "TMPDIR="+filepath.Join(m.data, "environments")+"/")
	})
}

// hidden reports whether a process is a child of this dormouse that hides its environment,
// as the runner in an invocation does.
func (m *machine) hidden(pid string) bool {
	if m.cmd == nil { // it was never started
		return false
	}
	return parentOf(pid) == m.cmd.Process.Pid
}

// parentOf returns the pid of the parent of a process, or 0 if the process has ended.
func parentOf(pid string) int {
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if err != nil || len(fields) < 2 || fields[0] == "Z" {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1]) // the kernel wrote it
	return parent
}

// those lists the machine's processes of the named programs.
func (m *machine) those(names ...string) []process {
	m.t.Helper()
	return slices.DeleteFunc(m.processes(), func(p process) bool { return !slices.Contains(names, p.program) })
}

// only returns the one process of a program. A child that has not started its own program
// yet has the name of its parent, and does not count.
func (m *machine) only(name string) process {
	m.t.Helper()
	named := m.those(name)
	all := slices.DeleteFunc(slices.Clone(named), func(p process) bool {
		return slices.ContainsFunc(named, func(parent process) bool { return p.parent == parent.pid })
	})
	if len(all) != 1 {
		m.t.Fatalf("there are %d processes of %s, want 1: %v", len(all), name, all)
	}
	return all[0]
}

// kill ends processes with SIGKILL.
func (m *machine) kill(all ...process) {
	m.t.Helper()
	for _, p := range all {
		if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			m.t.Errorf("kill %v: %v", p, err)
		}
	}
}

// killFunctions ends all processes of these functions with SIGKILL and returns when the
// emulator has noticed. Before that, the emulator may still give them an invocation. What
// then happens to it depends on the client and the gateway, as on AWS.
func (m *machine) killFunctions(names ...string) {
	m.t.Helper()
	if !m.programs {
		m.t.Fatal("there are no function programs: call asPrograms before start")
	}
	all := m.those(names...)
	m.kill(all...)
	for _, p := range all {
		m.await(patience, "the emulator has noticed", func(e event) bool { return e.Kind == "function.crash" && e.PID == p.pid })
	}
}

// killAll ends every process of the machine with SIGKILL, dormouse first, and returns
// when all have ended.
func (m *machine) killAll() {
	m.t.Helper()
	m.kill(m.only("dormouse"))
	m.kill(m.processes()...)
	m.ended(patience)
	m.eventually(patience, "everything is dead", func() bool {
		left := m.processes()
		m.kill(left...)
		return len(left) == 0
	})
}

// restart ends dormouse itself with SIGKILL and starts it again, with the addresses that
// clients know. Its boxes end with it.
func (m *machine) restart() {
	m.t.Helper()
	m.kill(m.only("dormouse"))
	m.ended(patience)
	host := func(address string) string {
		u, err := url.Parse(address)
		commontest.OK(m.t, err)
		return u.Host
	}
	flags := m.flags
	for name, address := range m.urls {
		// The ports were free for a moment, and the machine of another test may have
		// taken one.
		m.eventually(patience, "the addresses are free", func() bool { return commontest.Free(m.t, host(address)) && commontest.Free(m.t, host(m.ws[name])) })
		if !slices.Contains(flags, "--sockets") {
			flags = append(slices.Clone(flags), "--listen", host(address), "--sockets", host(m.ws[name]))
		}
		break
	}
	m.start(slices.DeleteFunc(flags, func(f string) bool { return f == "--json" || f == "--log-format=json" })...)
}

// asleep waits until nothing but dormouse itself runs.
func (m *machine) asleep() {
	m.t.Helper()
	m.eventually(asleepWithin, "nothing runs", func() bool { return len(m.processes()) == 1 && len(m.ps().Boxes) == 0 })
}

// eventually waits for a condition that only the operating system can show.
func (m *machine) eventually(within time.Duration, what string, ok func() bool) {
	m.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond) // a look at all processes takes some of them
	defer tick.Stop()
	for deadline := time.Now().Add(within); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			m.t.Fatalf("not within %s: %s; there are %v", within, what, m.processes())
		}
	}
}

// event is a JSON line of dormouse run.
type event struct {
	Kind    string
	Name    string
	PID     int
	URL     string
	Running int
	Reason  string

	Added, Changed, Removed []string

	SocketURL string `json:"socket_url"`
}

// events returns what has been printed so far.
func (m *machine) events() []event {
	m.t.Helper()
	lines, _ := m.out.lines()
	return m.parse(lines)
}

func (m *machine) parse(lines []string) []event {
	m.t.Helper()
	all := make([]event, len(lines))
	for i, line := range lines {
		commontest.OKIn(m.t, fmt.Sprintf("dormouse run --json printed %q", line), json.Unmarshal([]byte(line), &all[i]))
	}
	return all
}

func (m *machine) count(kind string) int {
	m.t.Helper()
	return len(slices.DeleteFunc(m.events(), func(e event) bool { return e.Kind != kind }))
}

// await waits for an event. It finds events since the start, and later ones.
func (m *machine) await(within time.Duration, what string, is func(event) bool) (e event) {
	m.t.Helper()
	m.awaitLine(m.out, within, what, func(line string) bool {
		e = m.parse([]string{line})[0]
		return is(e)
	})
	return e
}

// awaitLine waits for a line of an output. It also finds lines that are already there.
func (m *machine) awaitLine(j *journal, within time.Duration, what string, is func(string) bool) string {
	m.t.Helper()
	deadline := time.After(within)
	for seen := 0; ; {
		lines, more := j.lines()
		for _, line := range lines[seen:] {
			if is(line) {
				return line
			}
		}
		seen = len(lines)
		select {
		case <-more:
		case <-m.exited:
			m.t.Fatalf("dormouse run ended (%v) before: %s", m.cmd.ProcessState, what)
		case <-deadline:
			m.t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// journal keeps the lines of an output. Safe for concurrent use.
type journal struct {
	mu   sync.Mutex
	rest []byte
	all  []string
	more chan struct{} // closed at the next line
}

func newJournal() *journal { return &journal{more: make(chan struct{})} }

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rest = append(j.rest, p...)
	for {
		line, rest, found := bytes.Cut(j.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		j.all, j.rest = append(j.all, string(line)), rest
		close(j.more)
		j.more = make(chan struct{})
	}
}

// lines returns the whole lines so far, and a channel that is closed at the next
// line.
func (j *journal) lines() ([]string, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clip(j.all), j.more
}

func (j *journal) tail(n int) string {
	lines, _ := j.lines()
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

// write writes a file, and makes the folder that it is in.
func write(t *testing.T, file, text string) {
	t.Helper()
	mkdir(t, filepath.Dir(file))
	commontest.OK(t, os.WriteFile(file, []byte(text), 0o600))
}

// mkdir makes a folder, unless it is there.
func mkdir(t *testing.T, path string) {
	t.Helper()
	commontest.OK(t, os.MkdirAll(path, 0o755))
}

// linesOf returns the lines of a file, without empty ones.
func linesOf(t *testing.T, file string) []string {
	t.Helper()
	return strings.FieldsFunc(read(t, file), func(r rune) bool { return r == '\n' })
}

// ranOnce returns the calls in the file of a server, sorted. Each must be there once.
func ranOnce(t *testing.T, file string) []string {
	t.Helper()
	ran := slices.Sorted(slices.Values(linesOf(t, file)))
	if n := len(ran) - len(slices.Compact(slices.Clone(ran))); n > 0 {
		t.Errorf("%d calls in %s ran more than once", n, file)
	}
	return ran
}
