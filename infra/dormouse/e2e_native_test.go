//go:build e2e

package dormouse_test

import (
	"bytes"
	"encoding/json"
	"fmt"
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

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// natives is a folder with the functions of testdata/native, built once.
var natives = sync.OnceValues(func() (string, error) {
	folder := filepath.Join(stdioFolder, "natives")
	for _, name := range []string{"http", "socket"} {
		out, err := exec.Command("go", "build", "-trimpath", "-tags", "lambda.norpc", "-ldflags", "-s -w", "-o", filepath.Join(folder, name), "./testdata/native").CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("build testdata/native: %w: %s", err, out)
		}
	}
	return folder, nil
})

// nativeMachine returns a machine that hosts one native server of the functions that
// come with Dormouse.
func nativeMachine(t *testing.T, name string) *machine {
	t.Helper()
	return machineOf(t, map[string]any{name: map[string]any{"x-dormouse": map[string]any{"native": name}}})
}

// probeMachine returns a machine that hosts the server of testdata/native. The test must
// start it with the flags.
func probeMachine(t *testing.T) (m *machine, flags []string) {
	t.Helper()
	folder, err := natives()
	if err != nil {
		t.Fatal(err)
	}
	return nativeMachine(t, "probe"), []string{"--functions", folder}
}

// redeploy kills all processes and starts the machine again.
func (m *machine) redeploy(flags ...string) {
	m.t.Helper()
	m.killAll()
	m.start(flags...)
}

func TestE2ENativeStateOutlivesEveryProcess(t *testing.T) {
	t.Parallel()
	m := nativeMachine(t, "counter")
	m.start()
	c := m.session("counter")
	for want := 1; want <= 3; want++ {
		if got := c.text("add", "{}"); got != strconv.Itoa(want) {
			t.Fatalf("counted %s, want %d", got, want)
		}
		m.redeploy()
		c = m.again(c, "counter")
	}
	if boxes := m.those("runner"); len(boxes) > 0 {
		t.Errorf("a native server has a box: %v", boxes)
	}
}

func TestE2ENativeMessagesAtOnceInitializeOnceAndLoseNoWrite(t *testing.T) {
	t.Parallel()
	m, own := probeMachine(t)
	m.start(own...)
	c := m.session("probe")
	const n = 8 // each a function process of its own
	got, want := make([]string, n), make([]string, n)
	var all sync.WaitGroup
	for i := range n {
		want[i] = fmt.Sprintf("%d of 1", i+1)
		all.Go(func() {
			messages, err := c.call("add", "{}")
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = textOf(messages[len(messages)-1])
		})
	}
	all.Wait()
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counted, and how often it was initialized (-want +got):\n%s", diff)
	}
}

// A session works only over its own transport, and over any connection of it.
func TestE2ENativeQuestionIsAnsweredAfterARedeployment(t *testing.T) {
	t.Parallel()
	m := nativeMachine(t, "booking")
	m.start(sleepy()...)
	s := m.talk("booking")
	s.id()
	id := s.ask("book", `{"trip":"Ulm"}`)
	q, err := s.hear()
	if err != nil || q.Method != wire.MethodElicit {
		t.Fatalf("%s, %v", q.Raw, err)
	}
	s.named(func() bool { _, stream := eventID(s.last); return stream != "" }) // the question is an event of the call's stream
	m.asleep()
	m.redeploy(sleepy()...)
	s = m.resume("booking", s)
	s.say(`{"jsonrpc":"2.0","id":` + string(q.ID) + `,"result":{"action":"accept","content":{"seats":2}}}`)
	if got := textOf(s.end(id)); got != "booked: Ulm" {
		t.Errorf("the call ended with %q", got)
	}
}

func TestE2ENativeJobGoesOnByAnAlarmOverARestart(t *testing.T) {
	t.Parallel()
	m := nativeMachine(t, "job")
	m.start(sleepy()...)
	c := m.session("job")
	s, err := c.post(c.request("7", "work", `{"steps":2,"seconds":4}`))
	if err != nil {
		t.Fatal(err)
	}
	step, err := s.next()
	if err != nil || step.Method != wire.NotifyProgress {
		t.Fatalf("%s, %v", step.Raw, err)
	}
	s.close()
	m.eventually(patience, "the alarm is kept", func() bool {
		kept, err := filepath.Glob(filepath.Join(m.data, "schedules", "*.json")) // a file that is being written has another name
		return err == nil && len(kept) > 0
	})
	m.redeploy(sleepy()...)
	m.eventually(patience, "the alarm begins the next step", func() bool {
		kept, err := os.ReadDir(filepath.Join(m.data, "schedules"))
		return err == nil && len(kept) == 0
	})
	c = m.again(c, "job")
	ctx, cancel := c.patience()
	defer cancel()
	messages, err := c.follow(ctx, s, "7")
	if err != nil {
		t.Fatal(err)
	}
	if got := textOf(messages[len(messages)-1]); got != "worked 2 steps" {
		t.Errorf("the call ended with %q", got)
	}
}

func TestE2ENativeSubscriptionsAndLogLevelOutliveEveryProcess(t *testing.T) {
	t.Parallel()
	m, own := probeMachine(t)
	m.start(own...)
	c := m.session("probe")
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":"l","method":"logging/setLevel","params":{"level":"error"}}`,
		`{"jsonrpc":"2.0","id":"s","method":"resources/subscribe","params":{"uri":"probe://x"}}`,
	} {
		s, err := c.post(body)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.next(); err != nil || got.Result == nil {
			t.Fatalf("%s, %v", got.Raw, err)
		}
		s.close()
	}
	m.redeploy(own...)
	c = m.again(c, "probe")
	messages, err := c.call("who", "{}")
	if err != nil {
		t.Fatal(err)
	}
	var logs []string
	for _, x := range messages[:len(messages)-1] {
		logs = append(logs, string(wire.Lookup(x.Params, "level")))
	}
	if diff := cmp.Diff([]string{`"error"`}, logs); diff != "" {
		t.Errorf("levels that were logged (-want +got):\n%s", diff)
	}
	var is struct {
		Client     string
		Subscribed []string
	}
	if err := json.Unmarshal([]byte(textOf(messages[len(messages)-1])), &is); err != nil || is.Client != "e2e" || len(is.Subscribed) != 1 {
		t.Errorf("the tool sees %+v, %v", is, err)
	}
	if got := c.text("touch", "{}"); got != "touched" {
		t.Fatal(got)
	}
	m.redeploy(own...)
	listener, err := m.again(c, "probe").resume("")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.close()
	if told, err := listener.next(); err != nil || told.Method != wire.NotifyResourceUpdated {
		t.Errorf("the listener hears %s, %v", told.Raw, err)
	}
}

func TestE2ENativeToolSeesWhatTheKeySaysOfItsPrincipal(t *testing.T) {
	t.Parallel()
	m, own := probeMachine(t)
	m.start(append(own, "--access", "keys")...)
	key := m.keys("create", "ada", "--server", "probe", "--props", `{"plan":"pro"}`)
	got := m.client("probe").served(wire.MethodToolsCall, "who", `"name":"who","arguments":{}`, "{}", "Authorization", "Bearer "+key, "X-Probe", "here")
	want := `{"authorization":"","client":"","header":"here","principal":"ada","props":{"plan":"pro"},"subscribed":null,"user":"ada"}`
	if diff := cmp.Diff(want, textOf(got)); diff != "" {
		t.Errorf("what the tool sees (-want +got):\n%s", diff)
	}
}

func TestE2EUnknownNativeServerIsRefusedByNameAtTheStart(t *testing.T) {
	t.Parallel()
	m := machineOf(t, map[string]any{"mine": map[string]any{"x-dormouse": map[string]any{"native": "countre"}}})
	m.run("--strict")
	if state := m.ended(20 * time.Second); state.ExitCode() == 0 {
		t.Errorf("it started: %v", state)
	}
	const why = `this program has no native server "countre"; it has booking, counter, job`
	if log := m.log.tail(5); !strings.Contains(log, why) {
		t.Errorf("it says %s", log)
	}
}

// tutorial returns the commands of docs/go-servers.md: those to paste first, and those for
// another terminal.
func tutorial(t *testing.T) (first, other string) {
	t.Helper()
	_, part, _ := strings.Cut(read(t, "../../docs/go-servers.md"), "\n## A first server\n")
	part, _, _ = strings.Cut(part, "\n## ")
	var blocks []string
	for i, block := range strings.Split(part, "\n```") {
		if code, isCode := strings.CutPrefix(block, "sh\n"); isCode && i%2 == 1 {
			blocks = append(blocks, code)
		}
	}
	if len(blocks) != 2 {
		t.Fatalf("docs/go-servers.md has %d blocks of commands, want 2", len(blocks))
	}
	return blocks[0], blocks[1]
}

// This test builds the program of docs/go-servers.md in a module that only requires
// Dormouse.
func TestE2EServersInAModuleOfTheirOwn(t *testing.T) {
	t.Parallel()
	first, _ := tutorial(t)
	_, hello, _ := strings.Cut(first, "<<'EOF'\npackage natives\n")
	hello, _, whole := strings.Cut(hello, "\nEOF\n")
	root, err := filepath.Abs("../..")
	if err != nil || !whole {
		t.Fatalf("no hello.go in docs/go-servers.md (%v)", err)
	}
	folder := t.TempDir()
	write(t, filepath.Join(folder, "go.mod"), "module example.com/mine\n\ngo 1.26\n\nrequire github.com/dormouse-mcp/dormouse v0.0.0\n\nreplace github.com/dormouse-mcp/dormouse => "+root+"\n")
	write(t, filepath.Join(folder, "go.sum"), read(t, filepath.Join(root, "go.sum")))
	for name, start := range map[string]string{"http": "HTTP", "socket": "Socket"} {
		at := filepath.Join(folder, name)
		write(t, filepath.Join(at, "hello.go"), "package main\n"+hello)
		write(t, filepath.Join(at, "main.go"), `package main

import (
	"github.com/dormouse-mcp/dormouse/functions/run"
	"github.com/dormouse-mcp/dormouse/shared/native"
)

func main() { run.`+start+`(native.Servers{"hello": hello}) }
`)
		build := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-trimpath", "-tags", "lambda.norpc", "-ldflags", "-s -w", "-o", filepath.Join(folder, "functions", name), "./"+name)
		build.Dir = folder
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v: %s", name, err, out)
		}
	}
	m := nativeMachine(t, "hello")
	m.start("--functions", filepath.Join(folder, "functions"))
	if got := m.session("hello").text("greet", `{"who":"Ada"}`); got != "hello Ada, number 1" {
		t.Errorf("got %q", got)
	}
}

// cloned returns a folder with the contents of a clone, as if all changes of the work tree
// were committed.
func cloned(t *testing.T) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = "../.."
	names, err := list.Output()
	if err != nil {
		t.Fatalf("list the files of the work tree: %v", err)
	}
	to := filepath.Join(t.TempDir(), "dormouse")
	for name := range bytes.SplitSeq(bytes.TrimSuffix(names, []byte{0}), []byte{0}) {
		from := filepath.Join("../..", string(name))
		info, err := os.Lstat(from)
		if err != nil || !info.Mode().IsRegular() {
			continue // it was removed and not committed
		}
		target := filepath.Join(to, string(name))
		write(t, target, read(t, from))
		if err := os.Chmod(target, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// The test runs the commands of the page unchanged, except for the port.
func TestE2ETutorialOfServersInGoWorksAsPasted(t *testing.T) {
	t.Parallel()
	first, other := tutorial(t)
	folder := cloned(t)
	m := &machine{t: t, data: filepath.Join(folder, ".dormouse"), tmp: t.TempDir()}
	t.Cleanup(m.end)
	paste := func(commands string) {
		cmd := exec.Command("bash", "-c", commands) //nolint:noctx // ended by end
		cmd.Dir, cmd.Env = folder, append(os.Environ(), "TMPDIR="+m.tmp, "ARGS=--listen 127.0.0.1:0 --json")
		m.execute(cmd)
		m.await(4*time.Minute, "the endpoint is ready", func(e event) bool {
			m.urls[e.Name] = e.URL
			return e.Kind == "ready"
		})
	}
	greeted := func(want string) {
		curl := strings.ReplaceAll(other, "http://127.0.0.1:8787/hello/mcp", m.urls["hello"])
		out, err := exec.CommandContext(t.Context(), "bash", "-c", curl).Output()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("curl was answered %s, %v; want %s in it", out, err, want)
		}
	}
	paste(first)
	greeted("hello Ada, number 1")
	greeted("hello Ada, number 2")
	m.stopPasted()
	paste("make run")
	greeted("hello Ada, number 3")
	m.stopPasted()
}

// stopPasted does what Ctrl-C does to the pasted commands: it signals every program that
// they started.
func (m *machine) stopPasted() {
	m.t.Helper()
	if err := syscall.Kill(m.only("dormouse").pid, syscall.SIGINT); err != nil {
		m.t.Fatal(err)
	}
	m.ended(30 * time.Second)
}
