package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// role is an environment variable with a job. If it is set, the test binary runs the job, as a
// runner that is not root.
const role = "SANDBOX_TEST_RUNNER"

func TestMain(m *testing.M) {
	Enter(os.Args)
	if job, ok := os.LookupEnv(role); ok {
		os.Exit(runner(job))
	}
	code := m.Run()
	if err := os.RemoveAll(buildDir()); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// job is a program to be run in a sandbox.
type job struct {
	Policy Policy
	Env    []string
	Dir    string
	Path   string
	Args   []string
}

func (j job) start(stdin io.Reader, stdout, stderr io.Writer) (*Sandbox, *exec.Cmd, error) {
	s, err := New(j.Policy, Probe())
	if err != nil {
		return nil, nil, err
	}
	cmd := &exec.Cmd{
		Path: j.Path, Args: append([]string{j.Path}, j.Args...), Env: j.Env, Dir: j.Dir, Stdin: stdin, Stdout: stdout, Stderr: stderr,
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}
	return s, cmd, s.Start(cmd)
}

// runner runs a job and exits with the status of the job's program.
func runner(text string) int {
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		var cmd *exec.Cmd
		if _, cmd, err = j.start(os.Stdin, os.Stdout, os.Stderr); err == nil {
			err = cmd.Wait()
		}
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && !exit.Exited():
		status, _ := exit.Sys().(syscall.WaitStatus)
		return 128 + int(status.Signal())
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 125
	}
	return 0
}

// host is the user who runs programs: root, or another user.
type host struct{ uid int }

const nobody = 65534

// everyHost runs a test as another user and, if the tests run as root, also as root.
func everyHost(t *testing.T, test func(t *testing.T, h host)) {
	t.Helper()
	if os.Getuid() == 0 {
		t.Run("root", func(t *testing.T) { test(t, host{uid: 0}) })
		t.Run("nobody", func(t *testing.T) { test(t, host{uid: nobody}) })
		return
	}
	t.Run("user", func(t *testing.T) { test(t, host{uid: os.Getuid()}) })
}

// unprivileged is an environment variable. If it is 1, tests pass although this machine lacks
// what they need.
const unprivileged = "DORMOUSE_TEST_UNPRIVILEGED"

// notShown fails a test that cannot check its promise on this machine. A green run must
// not silently mean less on one machine than on another.
func notShown(t *testing.T, why string) {
	t.Helper()
	if os.Getenv(unprivileged) == "1" {
		t.Log("not shown:", why)
		return
	}
	t.Errorf("not shown: %s. Run the tests as root on Linux 6.12 or later, with Landlock among the security modules (cat /sys/kernel/security/lsm), or set %s=1 to go without", why, unprivileged)
}

// Tests that run by everyHost skip what this machine cannot show; this test reports that
// once.
func TestThisMachineCanShowEveryGuard(t *testing.T) {
	on := Probe()
	if os.Getuid() != 0 || on.Users == 0 {
		notShown(t, "what holds for a runner that is root, which gives each process a user of its own")
	}
	if on.Landlock == 0 || !on.Seccomp || !on.Limits {
		notShown(t, fmt.Sprintf("what the kernel lacks (%+v)", on))
	}
}

// ownUser reports whether programs of this host get a user of their own.
func (h host) ownUser() bool { return h.uid == 0 && Probe().Users > 0 }

// folder makes a folder that belongs to the host and that others can pass through.
func (h host) folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		commontest.OK(t, os.Chmod(d, 0o755))
	}
	if h.uid != os.Getuid() {
		commontest.OK(t, os.Chown(dir, h.uid, h.uid))
	}
	return dir
}

// policy returns a Policy with a workspace and a temporary folder of its own.
func (h host) policy(t *testing.T) Policy {
	t.Helper()
	dir := h.folder(t)
	return Policy{Workspace: filepath.Join(dir, "workspace"), Temp: filepath.Join(dir, "temp")}
}

// start starts the job's program. If the host is the user of the test, the test itself is
// the runner. Otherwise start runs the test binary as another process, which is the
// runner, and returns the command of that process.
func (h host) start(t *testing.T, j job, stdin io.Reader, stdout, stderr io.Writer) *exec.Cmd {
	t.Helper()
	j.Env = append(j.Env, "TMPDIR="+j.Policy.Temp)
	if h.uid == os.Getuid() {
		s, cmd, err := j.start(stdin, stdout, stderr)
		commontest.OK(t, err)
		t.Cleanup(func() {
			commontest.Check(t, s.End())
		})
		return cmd
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "/proc/self/exe") // ends when its stdin does
	cmd.Env = []string{role + "=" + marshal(t, j), "SECRET_OF_THE_RUNNER=1", "GORACE=atexit_sleep_ms=0"}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uint32(h.uid), Gid: uint32(h.uid)}, Pdeathsig: syscall.SIGKILL,
	}
	commontest.OK(t, cmd.Start())
	return cmd
}

func marshal(t *testing.T, j job) string {
	t.Helper()
	text, err := json.Marshal(j)
	commontest.OK(t, err)
	return string(text)
}

// result says what a program printed, and how it ended.
type result struct {
	out  string
	code int // 128 and the number of the signal that killed it
}

func (h host) run(t *testing.T, j job) result {
	t.Helper()
	var out bytes.Buffer
	cmd := h.start(t, j, nil, &out, &out)
	timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	commontest.EqualIn(t, "it ended within a minute, without being killed", true, timer.Stop())
	r := result{out: out.String(), code: cmd.ProcessState.ExitCode()}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		r.code = 128 + int(status.Signal())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return r
}

// probe runs the prober, which must print something and succeed.
func (h host) probe(t *testing.T, p Policy, args ...string) string {
	t.Helper()
	r := h.run(t, job{Policy: p, Path: prober(t), Args: args})
	if r.code != 0 {
		t.Fatalf("the prober exited with %d:\n%s", r.code, r.out)
	}
	return r.out
}

// expect checks the lines of an output whose names are in want.
func expect(t *testing.T, out string, want ...string) {
	t.Helper()
	lines := strings.Split(out, "\n")
	has := map[string]bool{}
	for _, l := range lines {
		has[l] = true
	}
	for _, w := range want {
		if !has[w] {
			t.Errorf("no line %q in:\n%s", w, out)
		}
	}
}

// prober makes the prober once for all tests, in a folder where every user can execute it.
func prober(t *testing.T) string {
	t.Helper()
	dir := buildDir()
	to := filepath.Join(dir, "prober")
	if _, err := os.Stat(to); err == nil {
		return to
	}
	commontest.OK(t, os.MkdirAll(dir, 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to, "./testdata/prober")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return to
}

func buildDir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("sandbox-test-%d", os.Getpid()))
}

// interpreter finds a program outside of all homes.
func interpreter(t *testing.T, name, from string) string {
	t.Helper()
	for _, dir := range append([]string{"/usr/bin", "/usr/local/bin"}, filepath.SplitList(os.Getenv("PATH"))...) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode()&0o001 != 0 && !strings.HasPrefix(path, os.Getenv("HOME")+"/") {
			return path
		}
	}
	t.Fatalf("%s is not there: install it, %s", name, from)
	return ""
}
