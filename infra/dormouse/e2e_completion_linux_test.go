//go:build e2e

package dormouse_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// bash completes a command, a flag and the name of a server when a person presses Tab.
func TestE2ECompletionInBash(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"weather": nil})
	bash, err := exec.LookPath("bash")
	commontest.OK(t, err)
	cmd := exec.CommandContext(t.Context(), bash, "--norc", "--noprofile", "-i") //nolint:gosec // bash
	cmd.Dir = filepath.Dir(m.servers)
	cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "PS1=> ", "TERM=dumb", "INPUTRC=/dev/null")
	master, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: 200})
	commontest.OK(t, err)
	defer func() { _, _, _ = master.Close(), cmd.Process.Kill(), cmd.Wait() }()
	shown := ""
	for _, step := range []struct{ types, shows string }{
		{"source <(dormouse completion bash); echo re''ady\n", "ready\r\n"},
		{"dormouse disa\t", "dormouse disable "},
		{"wea\t", "disable weather "},
		{"--serv\t", "weather --servers "},
	} {
		t.Run(step.types, func(t *testing.T) {
			if _, err := io.WriteString(master, step.types); err != nil {
				t.Fatal(err)
			}
			commontest.OK(t, master.SetReadDeadline(time.Now().Add(time.Minute)))
			for char := make([]byte, 1); !strings.HasSuffix(shown, step.shows); {
				if _, err := master.Read(char); err != nil {
					t.Fatalf("after %q: %v; it shows %q", step.types, err, shown)
				}
				shown += string(char)
			}
		})
	}
}
