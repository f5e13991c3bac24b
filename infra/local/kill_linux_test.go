package local

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// playMachine hosts the servers of a file until it is killed.
func playMachine() {
	dir := os.Getenv("DORMOUSE_TEST_FOLDER")
	err := Run(context.Background(), Config{
		Listen: "127.0.0.1:0", Servers: filepath.Join(dir, "servers.json"), Data: filepath.Join(dir, "data"), Runner: []string{"/does/not/exist"},
		Environ: append(os.Environ(), "DORMOUSE_CACHE="+filepath.Join(dir, "cache")),
		Ready:   func(url string) { _, _ = fmt.Fprintln(os.Stdout, url) },
	})
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// The kernel ends a server inside with the program.
func TestNothingIsLeftOfAMachineThatIsKilled(t *testing.T) {
	dir := t.TempDir()
	commontest.OK(t, os.WriteFile(filepath.Join(dir, "servers.json"), stdioServers(t), 0o600))
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=machine", "DORMOUSE_TEST_FOLDER="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	commontest.OK(t, err)
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the machine does not start")
	}
	url := lines.Text()
	pids := []int{open(t, url+"/one/mcp").pid("pid"), open(t, url+"/two/mcp").pid("pid")}
	var watched []int
	for _, pid := range pids {
		watched = append(watched, ending(t, pid))
	}
	commontest.OK(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait() // it was killed
	for i, fd := range watched {
		awaitEndOf(t, pids[i], fd)
	}
}

// ending returns a descriptor of a process that can be read when the process has ended.
func ending(t *testing.T, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	commontest.OK(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func awaitEndOf(t *testing.T, pid, fd int) {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000) //nolint:gosec // a descriptor is small
		switch {
		case err == unix.EINTR:
			continue
		case n != 1 || err != nil:
			t.Errorf("process %d has not ended: %v", pid, err)
		}
		return
	}
}
