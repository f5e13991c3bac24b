package lambda

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
)

func TestProcessesOutliveTheThreadOfTheirCaller(t *testing.T) {
	r := newRig(t, nil)
	p := localtest.Payload(t, "hello", localtest.Query("mode", "echo"))
	ctx := t.Context()
	answered := make(chan reply)
	go func() {
		// The goroutine never unlocks its thread, so the thread ends with it. If this
		// thread started processes, the kernel would act as if their parent had died.
		runtime.LockOSThread()
		inv, err := r.pool.Invoke(ctx, "echo", p)
		if err != nil {
			answered <- reply{err: err}
			return
		}
		answered <- finish(inv)
	}()
	pid := localtest.Wait(t, answered).pid(t)
	r.settled(1)
	if got := r.call("mode", "echo").pid(t); got != pid {
		t.Fatalf("process %d answered, want %d", got, pid)
	}
}

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
