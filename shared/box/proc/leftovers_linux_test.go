package proc

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// B19, L-24: EndMarked finds what a killed runner has left, and nothing else.
func TestMarkedProcessesAreFoundWhereverTheyWent(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "box")
	begin := func(mark string) int {
		// The process has forked twice and has a session of its own. Its parent is gone.
		sh := exec.CommandContext(t.Context(), "/bin/sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!")
		sh.Env = []string{"PATH=" + os.Getenv("PATH"), MarkEnv + "=" + mark}
		out, err := sh.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := sh.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if err := sh.Wait(); err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	one, two, other, longer := begin(mark+"/1"), begin(mark+"/2"), begin(mark+"er/1"), begin(mark+"/11")
	if err := EndMarked(mark + "/1"); err != nil {
		t.Fatal(err)
	}
	if !ended(one) || !alive(two) || !alive(longer) {
		t.Errorf("of one process: alive %v %v %v", alive(one), alive(two), alive(longer))
	}
	if err := EndMarked(mark); err != nil {
		t.Fatal(err)
	}
	if !ended(two) || !ended(longer) || !alive(other) {
		t.Errorf("of a box: alive %v %v, of another box %v", alive(two), alive(longer), alive(other))
	}
	if err := EndMarked(mark + "er"); err != nil || !ended(other) {
		t.Errorf("of the other box: %v", err)
	}
	if err := EndMarked(""); err != nil {
		t.Error(err)
	}
}

// ended waits until a killed process is a zombie or gone. EndMarked may return a moment
// earlier, when the process has lost its environment.
func ended(pid int) bool {
	for deadline := time.Now().Add(5 * time.Second); alive(pid); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}
