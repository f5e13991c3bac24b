// Package cranetest runs a registry of container images in memory, for tests. The registry is part
// of the program crane.
package cranetest

import (
	"bufio"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// Registry starts a registry, which runs until the end of the test, and returns its host and port
// on loopback. The argument crane is the path of the program.
func Registry(t testing.TB, crane string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), crane, "registry", "serve", "--address", "127.0.0.1:0")
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // crane was killed when the test's context ended
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, said) }()
	return "127.0.0.1:" + regexp.MustCompile(`\d+\s*$`).FindString(strings.TrimSpace(line))
}
