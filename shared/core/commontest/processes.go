package commontest

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience is how long [Eventually] waits. Only a failing test waits that long.
const patience = 30 * time.Second

// Alive reports whether a process runs; a zombie does not.
func Alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// Eventually waits until ok returns true. After 30 seconds it fails the test with what.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}
