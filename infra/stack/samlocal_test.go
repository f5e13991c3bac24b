//go:build samlocal

package stack_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// The commands of events/README.md do what it says, as somebody types them in a clone.
func TestTheCommandsOfTheReadmeUnderSAMLocal(t *testing.T) {
	text, err := os.ReadFile(root("events", "README.md"))
	commontest.OK(t, err)
	_, block, _ := strings.Cut(string(text), "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", block) //nolint:gosec // the commands are those of our own page
	cmd.Dir = root()
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(tools(t).python)+":"+os.Getenv("PATH"), "AWS_DEFAULT_REGION=us-east-1", "SAM_CLI_TELEMETRY=0", "MAKEFLAGS=")
	if os.Getenv("ENGINE_STARTED") != "" {
		cmd.Env = append(cmd.Env, "SAM_SKIP_PULL_IMAGE=1")
	}
	var says bytes.Buffer
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, &says)
	}
	if n := strings.Count(string(out), "401"); n != 2 {
		t.Errorf("%d of two invocations are refused with 401:\n%s\n%s", n, out, &says)
	}
}
