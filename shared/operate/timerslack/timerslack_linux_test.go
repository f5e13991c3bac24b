package timerslack_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/operate/timerslack"
)

// asked is the environment variable that makes this program, as a child of a test, call
// Take and start a child that prints its own slack.
const asked = "SLACK_TEST_TAKE"

func TestMain(m *testing.M) {
	if os.Getenv(asked) == "" {
		os.Exit(m.Run())
	}
	timerslack.Take(os.Args, os.Environ())
	out, err := exec.Command("cat", "/proc/self/timerslack_ns").Output()        //nolint:noctx // it ends at once
	fmt.Println(os.Getpid(), strings.TrimSpace(string(out)), len(os.Args), err) //nolint:forbidigo // the answer
	os.Exit(0)
}

func TestTakeExecutesTheProgramOnceMoreInItsPlaceAndChildrenInheritTheSlack(t *testing.T) {
	self, err := os.Executable()
	commontest.OK(t, err)
	cmd := exec.Command(filepath.Clean(self), "an", "argument") //nolint:noctx // it ends at once
	cmd.Env = append(os.Environ(), asked+"=1")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	if want := fmt.Sprintln(cmd.Process.Pid, timerslack.Slack.Nanoseconds(), 3, nil); out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}
