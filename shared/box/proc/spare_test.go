package proc

import (
	"os/exec"
	"runtime"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestAStartLeavesAProcessorToOtherGoroutines(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var seen []int
	run := func(start func(*exec.Cmd) error) {
		t.Helper()
		c, err := Start(Command{Path: "/bin/sh", Args: []string{"sh", "-c", "exit"}, Start: start}, Grace{})
		commontest.OK(t, err)
		<-c.Exited()
		c.Release()
	}
	look := func(cmd *exec.Cmd) error {
		err := cmd.Start()
		seen = append(seen, runtime.GOMAXPROCS(0))
		return err
	}
	run(func(cmd *exec.Cmd) error {
		run(look) // another start, which ends first
		return look(cmd)
	})
	if want := []int{2, 2}; len(seen) != 2 || seen[0] != want[0] || seen[1] != want[1] || runtime.GOMAXPROCS(0) != 1 {
		t.Errorf("processors of the Go runtime during the starts: %d, want %d; afterwards: %d, want 1", seen, want, runtime.GOMAXPROCS(0))
	}
}
