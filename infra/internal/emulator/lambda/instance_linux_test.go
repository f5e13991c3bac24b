package lambda

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
)

func TestBusyFunctionDiesWithAKilledEmulator(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	emulator := exec.CommandContext(t.Context(), program)
	emulator.Env = append(os.Environ(), emulatorEnv+"="+localtest.EchoProgram(t))
	emulator.Stderr = os.Stderr
	out, err := emulator.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := emulator.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if !localtest.Alive(pid) {
		t.Fatal("the function is not alive")
	}
	if err := emulator.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = emulator.Wait() // "signal: killed"
	localtest.Eventually(t, "the function to die", func() bool { return !localtest.Alive(pid) })
}
