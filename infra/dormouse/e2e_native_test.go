//go:build e2e

package dormouse_test

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// probes is the program with the native server of testdata/native. Its name is dormouse, as that of
// the program without servers.
var (
	release = []string{"-trimpath", "-tags", "lambda.norpc", "-ldflags", "-s -w"} // as make build
	probes  = built("probes/dormouse", "./testdata/native", release...)
)

// nativeMachine returns a machine that hosts one native server of a program.
func nativeMachine(t *testing.T, program, name string) *machine {
	t.Helper()
	m := machineOf(t, map[string]any{name: map[string]any{"x-dormouse": map[string]any{"native": name}}})
	m.own = program
	return m
}

func TestE2ENativeStateOutlivesEveryProcess(t *testing.T) {
	t.Parallel()
	m := nativeMachine(t, probes(t), "probe")
	m.start()
	c := m.session("probe")
	for want := 1; want <= 2; want++ {
		if got := c.text("count", "{}"); got != strconv.Itoa(want) {
			t.Fatalf("counted %s, want %d", got, want)
		}
		m.killAll()
		m.start()
		c = m.again(c, "probe")
	}
	if boxes := m.those("runner"); len(boxes) > 0 {
		t.Errorf("a native server has a box: %v", boxes)
	}
}

// tutorial makes the module of docs/go-servers.md with the commands of the page. It returns
// its folder, the command that hosts the server, and the one for another terminal. Only the
// place of Dormouse differs.
func tutorial(t *testing.T) (folder, hosts, calls string) {
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
	init, rest, _ := strings.Cut(blocks[0], "\n")
	makes, hosts, whole := strings.Cut(rest, "\ngo mod tidy\n")
	if !whole || strings.Contains(hosts, "\n") {
		t.Fatalf("docs/go-servers.md has %q after go mod tidy, want one command", hosts)
	}
	root, err := filepath.Abs("../..")
	commontest.OK(t, err)
	folder = filepath.Join(t.TempDir(), "hello")
	mkdir(t, folder)
	paste := exec.CommandContext(t.Context(), "bash", "-ec", init+"\ngo mod edit -replace github.com/dormouse-mcp/dormouse=\"$0\"\n"+makes+"\ngo mod tidy", root)
	paste.Dir = folder
	if out, err := paste.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return folder, hosts, strings.TrimSpace(blocks[1])
}

// The same source is the functions, whose build leaves the command line out.
func TestE2ETutorialOfServersInGoWorksAsPasted(t *testing.T) {
	t.Parallel()
	folder, hosts, calls := tutorial(t)
	m := &machine{t: t, data: filepath.Join(folder, ".dormouse"), tmp: t.TempDir()}
	t.Cleanup(m.end)
	run := func() {
		cmd := exec.Command("bash", "-c", hosts+" --listen 127.0.0.1:0 --json") //nolint:noctx // ended by end
		cmd.Dir, cmd.Env = folder, append(os.Environ(), "TMPDIR="+m.tmp)
		m.execute(cmd)
		m.await(4*time.Minute, "the endpoint is ready", func(e event) bool { return e.Kind == "ready" })
	}
	greeted := func(want string) {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", calls)
		cmd.Dir = folder
		if out, err := cmd.Output(); err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s prints %s, %v; want %s", calls, out, err, want)
		}
	}
	stop := func() { // as Ctrl-C, which reaches every program of the terminal
		commontest.OK(t, syscall.Kill(m.only("hello").pid, syscall.SIGINT))
		m.ended(patience)
	}
	run()
	greeted("hello Ada, number 1")
	greeted("hello Ada, number 2")
	stop()
	run()
	greeted("hello Ada, number 3")
	stop()

	program := built("hello/dormouse", ".", append([]string{"-C", folder}, release...)...)(t)
	functions := nativeMachine(t, program, "hello").asPrograms()
	functions.start()
	commontest.EqualIn(t, "the functions answer", "hello Ada, number 1", functions.session("hello").text("greet", `{"who":"Ada"}`))
	artifacts := t.TempDir()
	made := exec.CommandContext(t.Context(), "make", "-C", "../..", "build-HttpFunction", "GO_SERVERS="+folder, "ARTIFACTS_DIR="+artifacts) //nolint:gosec // our own folders
	if out, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	info, err := buildinfo.ReadFile(filepath.Join(artifacts, "bootstrap"))
	if err != nil || info.Path != "example.com/hello" {
		t.Fatalf("the function is %+v, %v", info, err)
	}
	for _, dep := range info.Deps {
		if dep.Path == "github.com/alecthomas/kong" || dep.Path == "modernc.org/sqlite" {
			t.Errorf("the function has %s, which only the command line needs", dep.Path)
		}
	}
}
