package sandbox

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestProgramInheritsNothingOfTheRunner(t *testing.T) {
	t.Setenv("SECRET_OF_THE_RUNNER", "1")
	// This descriptor is not marked close-on-exec, as after a mistake in the runner.
	leak, err := os.Open("/dev/null")
	commontest.OK(t, err)
	defer closeAll(leak)
	leaked, err := unix.Dup(int(leak.Fd()))
	commontest.OK(t, err)
	defer closeAll(os.NewFile(uintptr(leaked), "leak"))
	everyHost(t, func(t *testing.T, h host) {
		p := h.policy(t)
		r := h.run(t, job{Policy: p, Path: prober(t), Args: []string{"inherited"}, Env: []string{"ONE=1"}})
		var env, fds []string
		for line := range strings.Lines(r.out) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "env "); ok {
				env = append(env, v)
			}
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "fd "); ok {
				fds = append(fds, v)
			}
		}
		slices.Sort(env)
		commontest.SameIn(t, "environment", []string{"ONE=1", "TMPDIR=" + p.Temp}, env)
		commontest.SameIn(t, "descriptors", []string{"0", "1", "2"}, fds)
		uid := h.uid
		if h.ownUser() {
			s, err := New(p, Probe())
			commontest.OK(t, err)
			uid = int(s.user)
		}
		expect(t, r.out, "wd "+p.Workspace+"=ok", "umask 77 leads true uid "+strconv.Itoa(uid)+"=ok")
		if h.ownUser() {
			expect(t, r.out, "groups []=ok")
		}
	})
}

func TestProgramThatCannotBeExecutedIsNoErrorOfTheSandbox(t *testing.T) {
	h := host{uid: os.Getuid()}
	s, err := New(h.policy(t), Probe())
	commontest.OK(t, err)
	for path, want := range map[string]error{"/nowhere/program": fs.ErrNotExist, "/etc/passwd": fs.ErrPermission} {
		t.Run(path, func(t *testing.T) {
			err := s.Start(&exec.Cmd{Path: path, Args: []string{path}})
			var mine *Error
			if !errors.Is(err, want) || errors.As(err, &mine) {
				t.Errorf("%s: %v", path, err)
			}
		})
	}
}

func TestStepThatFailsIsNamed(t *testing.T) {
	h := host{uid: os.Getuid()}
	for _, c := range []struct {
		name   string
		change func(*Policy, *exec.Cmd)
		step   string
	}{
		{"folder to read is missing", func(p *Policy, _ *exec.Cmd) { p.Read = []string{"/nowhere"} }, "landlock"},
		{"parent of the workspace is missing", func(p *Policy, _ *exec.Cmd) { p.Workspace = "/nowhere/at/all" }, "folders"},
		{"extra files", func(_ *Policy, c *exec.Cmd) { c.ExtraFiles = []*os.File{os.Stdin} }, "command"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, cmd := h.policy(t), &exec.Cmd{Path: prober(t), Args: []string{"prober", "cpus"}}
			c.change(&p, cmd)
			s, err := New(p, Probe())
			commontest.OK(t, err)
			var mine *Error
			if err := s.Start(cmd); !errors.As(err, &mine) || mine.Step != c.step {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestProgramDiesWithItsRunner(t *testing.T) {
	h := host{uid: os.Getuid()}
	p := h.policy(t)
	// The runner is another process, of the same user.
	stdout, out, err := os.Pipe()
	commontest.OK(t, err)
	defer closeAll(stdout)
	other := exec.CommandContext(t.Context(), "/proc/self/exe")
	other.Env = []string{role + "=" + marshal(t, job{Policy: p, Path: prober(t), Args: []string{"hold"}})}
	in, stdin, err := os.Pipe() // stays open, or the program would end by itself
	commontest.OK(t, err)
	defer closeAll(stdin)
	other.Stdin, other.Stdout = in, out
	commontest.OK(t, other.Start())
	closeAll(in, out)
	first := make([]byte, 64)
	n, err := stdout.Read(first)
	commontest.OK(t, err)
	commontest.OK(t, other.Process.Kill())
	_ = other.Wait() // its error is that it was killed
	// The program holds the other end of the pipe until it has ended.
	commontest.OK(t, stdout.SetReadDeadline(time.Now().Add(time.Minute)))
	if rest, err := io.ReadAll(stdout); err != nil {
		t.Errorf("process %q lives on: %q, %v", first[:n], rest, err)
	}
}

func TestEndReachesWhatLeftTheGroup(t *testing.T) {
	h := host{uid: os.Getuid()}
	if !h.ownUser() {
		notShown(t, "what left the group is known by its user: not root")
		return
	}
	p := h.policy(t)
	s, err := New(p, Probe())
	commontest.OK(t, err)
	var out strings.Builder
	cmd := &exec.Cmd{Path: prober(t), Args: []string{"prober", "escape"}, Env: []string{"TMPDIR=" + p.Temp}, Stdout: &out}
	commontest.OK(t, s.Start(cmd))
	commontest.OK(t, cmd.Wait())
	pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
	commontest.OKIn(t, "the program says "+out.String(), err)
	commontest.OKIn(t, "the process is not there", unix.Kill(pid, 0))
	commontest.OK(t, s.End())
	commontest.Eventually(t, "the process is gone", func() bool { return !commontest.Alive(pid) })
	if _, err := os.Stat(p.Temp); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary folder is left: %v", err)
	}
}
