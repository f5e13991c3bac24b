package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A program starts itself although its file was removed, or replaced by another one.
func TestAProgramStartsItselfWithoutItsFile(t *testing.T) {
	own, err := os.Executable()
	commontest.OK(t, err)
	path := filepath.Join(t.TempDir(), "program")
	commontest.OK(t, os.Link(own, path))
	program := programOf(path)
	commontest.EqualIn(t, "as long as the file is there", path, program())
	start := func(when string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program())
		cmd.Env = []string{roleEnv + "=exit3"}
		if out, _ := cmd.Output(); cmd.ProcessState.ExitCode() != 3 {
			t.Errorf("%s: %q, %v", when, out, cmd.ProcessState)
		}
	}
	commontest.OK(t, os.Remove(path))
	start("the file was removed")
	commontest.OK(t, os.WriteFile(path, []byte("#!/bin/sh\necho another\n"), 0o700))
	start("another file has its name")
}
