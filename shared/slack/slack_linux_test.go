package slack_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/slack"
)

// asked makes this program, as a child of a test, take a slack and print that of all
// its threads.
const asked = "SLACK_TEST_TAKE"

func TestMain(m *testing.M) {
	if os.Getenv(asked) == "" {
		os.Exit(m.Run())
	}
	slack.Take(3*time.Millisecond, os.Args, os.Environ())
	fmt.Println(os.Getpid(), slack.Get(), len(os.Args)) //nolint:forbidigo // the answer
	os.Exit(0)
}

func TestAChildHasTheSlackOfTheThreadThatStartsIt(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was := slack.Get()
	cmd := exec.Command("cat", "/proc/self/timerslack_ns") //nolint:noctx // it ends at once
	var out strings.Builder
	cmd.Stdout = &out
	err := slack.Start(2*time.Millisecond, cmd.Run)
	if got := strings.TrimSpace(out.String()); got != "2000000" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got := slack.Get(); got != was {
		t.Errorf("the thread has %s, had %s", got, was)
	}
}

func TestTakeExecutesTheProgramOnceMoreInItsPlace(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Clean(self), "an", "argument") //nolint:noctx // it ends at once
	cmd.Env = append(os.Environ(), asked+"=1")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	if want := fmt.Sprintln(cmd.Process.Pid, 3*time.Millisecond, 3); out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}
