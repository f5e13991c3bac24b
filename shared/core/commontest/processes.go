package commontest

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience is how long [Eventually] waits.
const patience = 30 * time.Second

// Alive reports whether a process runs. A zombie counts as ended. Without /proc of Linux, Alive returns
// false.
func Alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// Eventually calls ok until it returns true, and fails the test after 30 seconds. The argument what
// names the condition in the message.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}
