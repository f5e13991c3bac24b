package process

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

// roleEnv makes the test binary play a runner, or a process below one. A role prints a
// line when it is ready, with the pids of the processes below it.
const roleEnv = "PLAY"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleEnv); role {
	case "":
		if err := BecomeSubreaper(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		os.Exit(m.Run())
	case "polite": // ends on SIGTERM, as a real runner does
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		say("ready")
		<-stop
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		say("ready")
		block()
	case "exit3":
		say("one line")
		fmt.Fprint(os.Stderr, "no line end")
		os.Exit(3)
	case "fails":
		say(`{"level":"ERROR","msg":"before","error":"an older one"}`)
		say(`{"level":"ERROR","msg":"the box ended","error":"open /x/lock: permission denied"}`)
		say(`{"level":"INFO","msg":"\"ERROR\"","error":"none"}`)
		os.Exit(1)
	case "env":
		say(strings.Join(os.Environ(), " "))
	case "long":
		say(strings.Repeat("x", maxLine+100))
		say("after")
	case "family":
		playFamily()
	case "detacher":
		pid := playChild("stubborn", &syscall.SysProcAttr{Setsid: true})
		signal.Ignore(syscall.SIGTERM)
		say(fmt.Sprintf("ready %d", pid))
		block()
	case "emulator":
		playEmulator()
	default:
		fmt.Fprintln(os.Stderr, "unknown role", role)
		os.Exit(2)
	}
}

func say(line string) { _, _ = os.Stdout.WriteString(line + "\n") }

func block() { select {} }

// playFamily is a runner with what a box may leave behind: a server that moved to
// its own process group and ignores SIGTERM, one that started a detached helper,
// and a server that lives in the runner's group.
func playFamily() {
	group := playChild("stubborn", &syscall.SysProcAttr{Setpgid: true})
	plain := playChild("stubborn", &syscall.SysProcAttr{})
	detacher := startRole("detacher", &syscall.SysProcAttr{Setpgid: true})
	signal.Ignore(syscall.SIGTERM)
	say(fmt.Sprintf("ready %d %d %d %s", group, plain, detacher.pid, strings.TrimPrefix(detacher.line, "ready ")))
	block()
}

func playEmulator() {
	lines := make(chan string, 1)
	p := NewPool(Config{
		Command: os.Args[0],
		Output:  func(_ fleet.Status, line string) { lines <- line },
		Logger:  slog.New(slog.DiscardHandler),
	})
	if _, err := p.Run(context.Background(), fleet.Task{ClientToken: "t", Env: map[string]string{roleEnv: "stubborn"}}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	<-lines
	list, _ := p.Tasks(context.Background())
	say(fmt.Sprintf("ready %d", list[0].PID))
	block()
}

type roleProcess struct {
	pid  int
	line string
	cmd  *exec.Cmd
}

func playChild(role string, attr *syscall.SysProcAttr) int { return startRole(role, attr).pid }

// startRole starts a role with a cleaned environment and returns when it is ready.
func startRole(role string, attr *syscall.SysProcAttr) roleProcess {
	cmd := exec.Command(os.Args[0]) //nolint:noctx // ended by the test that owns its session
	cmd.Env = []string{roleEnv + "=" + role}
	cmd.SysProcAttr = attr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	buf := make([]byte, 256)
	n, _ := out.Read(buf)
	return roleProcess{pid: cmd.Process.Pid, line: strings.TrimSpace(string(buf[:n])), cmd: cmd}
}

// harness is a pool of fake runners. A test can wait for their lines and their ends.
type harness struct {
	*Pool
	t       *testing.T
	lines   chan string
	stopped chan fleet.Status
}

func newHarness(t *testing.T, change func(*Config)) *harness {
	t.Helper()
	h := &harness{t: t, lines: make(chan string, 100), stopped: make(chan fleet.Status, 100)}
	cfg := Config{
		Command: os.Args[0],
		OnStop:  func(s fleet.Status) { h.stopped <- s },
		Output:  func(_ fleet.Status, line string) { h.lines <- line },
	}
	if change != nil {
		change(&cfg)
	}
	h.Pool = NewPool(cfg)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel() // the test does not wait for what it left running
		_ = h.Close(ctx)
	})
	return h
}

func (h *harness) run(token, role string) string {
	h.t.Helper()
	id, err := h.Run(h.t.Context(), fleet.Task{ClientToken: token, Box: "box-1", Server: "echo", Env: map[string]string{roleEnv: role, "GORACE": "atexit_sleep_ms=0"}})
	if err != nil {
		h.t.Fatalf("run %s: %v", role, err)
	}
	return id
}

func (h *harness) line() string      { return receive(h.t, "a line of the runner", h.lines) }
func (h *harness) end() fleet.Status { return receive(h.t, "the end of a task", h.stopped) }

func receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("waited a minute for %s", what)
		panic("unreachable")
	}
}

// pids reads the numbers behind "ready".
func pids(t *testing.T, line string) []int {
	t.Helper()
	var list []int
	for _, word := range strings.Fields(line)[1:] {
		var pid int
		if _, err := fmt.Sscan(word, &pid); err != nil {
			t.Fatalf("line %q has no pids: %v", line, err)
		}
		list = append(list, pid)
	}
	return list
}

func exists(pid int) bool { return syscall.Kill(pid, 0) == nil }
