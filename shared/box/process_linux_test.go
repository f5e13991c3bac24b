package box

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestProcessDiesWithARunnerThatIsKilled(t *testing.T) {
	t.Parallel()
	runner := exec.CommandContext(t.Context(), self(t))
	runner.Env = []string{behaviour + "=runner"}
	out, err := runner.StdoutPipe()
	commontest.OK(t, err)
	commontest.OK(t, runner.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	commontest.OK(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || !commontest.Alive(pid) {
		t.Fatalf("the process %d is not there (%v)", pid, err)
	}
	commontest.OK(t, runner.Process.Kill())
	_ = runner.Wait() // says that it was killed
	commontest.Eventually(t, "the process is gone", func() bool { return !commontest.Alive(pid) })
}

// A server may end after an answer, just when the next request comes. What it has certainly
// not read was not executed.
func TestRequestThatAProcessHasNotReadIsNotLost(t *testing.T) {
	r := newRig(t, "normal")
	r.result(r.call("1", "last", "0"))
	commontest.Equal(t, `{"echo":2}`, string(r.result(r.call("2", "echo", "2"))))
	r.result(r.call("3", "last", "3"))
	commontest.EqualIn(t, "code", wire.CodeInternal, r.fails(r.call("4", "echo", "4"), "", `server "fake": exited with code 3; the call was not executed, send it again`).Code)
	commontest.EqualIn(t, "code", wire.CodeOutcomeUnknown, r.failure(r.call("5", "exit", "0")).Code)
}

func TestRequestIsSentAgainOnce(t *testing.T) {
	r := newRig(t, "reads no call")
	commontest.EqualIn(t, "code", wire.CodeInternal, r.fails(r.call("1", "echo", "1"), "", "exited with code 0; the call was not executed, send it again").Code)
	for range 2 {
		r.state(t, Started)
	}
}

func TestWhatLeftTheGroupGoesWithItsProcess(t *testing.T) {
	r := newRig(t, "normal", func(s *Server) { s.Mark = t.TempDir() })
	other := r.deliverIn("other", "fork") // the mark of another process
	forked, err := strconv.Atoi(string(r.result(other)))
	commontest.OK(t, err)
	away, err := strconv.Atoi(string(r.result(r.call("1", "leave group", "0"))))
	commontest.OK(t, err)
	commontest.Eventually(t, "the child that left is gone", func() bool { return !commontest.Alive(away) })
	commontest.EqualIn(t, "the child of another process is alive", true, commontest.Alive(forked))
}

func TestServerRunsInItsSandbox(t *testing.T) {
	temp := filepath.Join(t.TempDir(), "temp")
	r := newRig(t, "normal", func(s *Server) {
		s.Base = map[string]string{"HOME": "/somebody", "SECRET_OF_THE_RUNNER": "1"}
		s.Sandbox = func(string, provision.Launch) (*sandbox.Sandbox, error) {
			// KeepUser is needed because no other user may enter the folder of the test
			// binary.
			return sandbox.New(sandbox.Policy{Temp: temp, KeepUser: true}, sandbox.Probe())
		}
	})
	pid := string(r.result(r.call("1", "pid", "0")))
	status, err := os.ReadFile("/proc/" + pid + "/status")
	commontest.OK(t, err)
	commontest.Contains(t, "", "NoNewPrivs:\t1", string(status))
	env, err := os.ReadFile("/proc/" + pid + "/environ")
	commontest.OK(t, err)
	commontest.Contains(t, "", "HOME="+temp+"\x00", string(env))
	commontest.EqualIn(t, "it has the runner's secret", false, strings.Contains(string(env), "RUNNER"))
	commontest.OK(t, r.Close(t.Context(), 0))
	_, err = os.Stat(temp)
	commontest.EqualIn(t, "its temporary folder is removed", true, errors.Is(err, fs.ErrNotExist))
}

func TestLogSaysThatAProcessUsedTooMuchMemory(t *testing.T) {
	kept := &page{}
	r := newRig(t, "normal", func(s *Server) {
		s.Stderr = func(string) io.WriteCloser { return kept }
		s.Sandbox = func(string, provision.Launch) (*sandbox.Sandbox, error) {
			return sandbox.New(sandbox.Policy{Memory: 64 << 10, Temp: filepath.Join(t.TempDir(), "temp"), KeepUser: true}, sandbox.Probe())
		}
	})
	commontest.EqualIn(t, "out of memory", true, r.failure(r.call("1", "hang", "0")).OutOfMemory)
	r.state(t, Exited)
	commontest.Contains(t, "", ": it used more memory than memory_mb allows\n", kept.String())
}

func TestServerIsNotStartedWithoutItsSandbox(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script, interpreter := filepath.Join(dir, "server"), filepath.Join(dir, "interpreter")
	commontest.OK(t, os.WriteFile(script, []byte("#!"+interpreter+"\n"), 0o755))
	commontest.OK(t, os.WriteFile(interpreter, []byte("x"), 0o600))
	for name, c := range map[string]struct {
		policy  sandbox.Policy
		support sandbox.Support
		phase   Phase
		says    string
	}{
		"the system has none":  {sandbox.Policy{Demand: []sandbox.Guard{sandbox.GuardNetwork}}, sandbox.Support{}, PhaseSessionCreate, "network: "},
		"it cannot be made":    {sandbox.Policy{Read: []string{"/nowhere"}, Workspace: "/nowhere/workspace"}, sandbox.Probe(), PhaseSessionCreate, "/nowhere"},
		"it hides the program": {sandbox.Policy{Sockets: sandbox.AllSockets, KeepUser: true, Read: []string{dir}}, sandbox.Probe(), PhaseProcessStart, interpreter},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "normal", func(s *Server) {
				s.Command = script
				s.Sandbox = func(string, provision.Launch) (*sandbox.Sandbox, error) { return sandbox.New(c.policy, c.support) }
			})
			r.fails(r.call("1", "pid", "0"), c.phase, c.says)
			commontest.Equal(t, 0, len(r.Processes()))
		})
	}
}
