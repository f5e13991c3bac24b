package box

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

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
	if err != nil || !strings.Contains(string(status), "NoNewPrivs:\t1") || !strings.Contains(string(status), "CapEff:\t0000000000000000") {
		t.Errorf("it is not confined, %v:\n%s", err, status)
	}
	raw, err := os.ReadFile("/proc/" + pid + "/environ")
	commontest.OK(t, err)
	env := "\x00" + string(raw)
	if !strings.Contains(env, "\x00HOME="+temp+"\x00") || !strings.Contains(env, "\x00TMPDIR="+temp+"\x00") || strings.Contains(env, "RUNNER") {
		t.Errorf("its environment is %q", env)
	}
	commontest.OK(t, r.Close(t.Context(), 0))
	if _, err := os.Stat(temp); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its temporary folder is left: %v", err)
	}
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
			f := r.failure(r.call("1", "pid", "0"))
			if f.Phase != c.phase || !strings.Contains(f.Message, c.says) || len(r.Processes()) != 0 {
				t.Errorf("phase %s: %s", f.Phase, f.Message)
			}
		})
	}
}
