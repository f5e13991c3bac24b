package provision

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// stageOnce is the main function of the test binary when it stands for another runner that
// prepares a process.
func stageOnce(root string) int {
	s := Server{Command: "python", HostPath: filepath.Join(root, "host")}
	if _, err := New(config(root), s).Provision(context.Background(), strconv.Itoa(os.Getpid()), nil, nil); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}
	return 0
}

// other returns the command of another runner that prepares a process in the folders of the rig.
func (r *rig) other() *exec.Cmd {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	r.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), runnerRole+"="+r.root)
	cmd.Stderr = os.Stderr
	return cmd
}

func TestKilledHolderOfTheLockIsSucceeded(t *testing.T) {
	r := newRig(t)
	s := r.python(map[string]string{"host/requirements.txt": "a"})
	r.write(map[string]string{"pip": "echo $$ >\"$PIP_LOG_OF_TEST.pid\"; exec sleep 600\n"})
	holder := r.other()
	commontest.OK(t, holder.Start())
	pid := r.installing()
	r.write(map[string]string{"pip": ""})

	waits, got := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		_, err := r.stager(s).Provision(t.Context(), "p", func(p Progress) {
			if strings.HasPrefix(p.Text, "waiting for another start") {
				once.Do(func() { close(waits) })
			}
		}, nil)
		got <- err
	}()
	select {
	case <-waits:
	case err := <-got:
		t.Fatal("it did not wait for the holder:", err)
	}
	commontest.OK(t, holder.Process.Signal(syscall.SIGKILL))
	_ = holder.Wait() // its error is that it was killed
	commontest.OK(t, <-got)
	commontest.Eventually(t, "the install of the killed one is gone", func() bool { return !commontest.Alive(pid) })
	made, err := filepath.Glob(filepath.Join(r.root, "cache/python/*/made-*"))
	commontest.OK(t, err)
	commontest.EqualIn(t, "an unfinished install is left", 1, len(made))
}

func TestProgramsAtOnceInstallOnce(t *testing.T) {
	r := newRig(t)
	r.python(map[string]string{"host/requirements.txt": "a", "host/a.py": ""})
	r.write(map[string]string{"pip": "sleep 0.2\n"})
	var all sync.WaitGroup
	for range 6 {
		cmd := r.other()
		all.Go(func() {
			commontest.Check(t, cmd.Run())
		})
	}
	all.Wait()
	r.noted(1, "venv")
}

func TestStartsThatAreKilledAnywhereDoNoHarm(t *testing.T) {
	r := newRig(t)
	s := r.python(map[string]string{"host/requirements.txt": "a", "host/a.py": strings.Repeat("x", 1<<20)})
	r.write(map[string]string{"pip": "echo 1 >\"$VENV/one\"; sleep 0.02; echo 2 >\"$VENV/two\"\n"})
	for i := range 8 {
		r.write(map[string]string{"host/requirements.txt": "a" + strconv.Itoa(i)})
		cmd := r.other()
		commontest.OK(t, cmd.Start())
		// The first starts are killed at any moment. The last ones end before the kill.
		timer := time.AfterFunc(time.Duration(i*40)*time.Millisecond, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // most were killed
		timer.Stop()
		l := r.stage(s)
		for _, name := range []string{"one", "two", "bin/python"} {
			_, err := os.Stat(filepath.Join(l.Env["VIRTUAL_ENV"], name))
			commontest.Check(t, err)
		}
	}
}

func TestFolderOfARunnerIsItsOwnWhileItLives(t *testing.T) {
	root := t.TempDir()
	one, release, err := Claim(t.Context(), root, "", nil)
	commontest.OK(t, err)
	two, releaseTwo, err := Claim(t.Context(), root, "", nil)
	if err != nil || one == two {
		t.Fatal(one, two, err)
	}
	commontest.OK(t, os.Remove(filepath.Join(one, "alive"))) // Claim looks at no lock of its own program
	three, releaseThree, err := Claim(t.Context(), root, "", nil)
	if err != nil || !there(one) || !there(two) || releaseThree() != nil || there(three) {
		t.Error("a living runner's folder was removed:", err)
	}
	commontest.Check(t, errors.Join(release(), releaseTwo()))
	if left := list(t, root); len(left) != 1 { // the lock
		t.Error(left)
	}
}

func TestFolderOfAKilledRunnerIsRemovedByTheNext(t *testing.T) {
	r := newRig(t)
	killed := r.other()
	killed.Env = append(killed.Env, "STAGE_TEST_CLAIM=1")
	out, err := killed.StdoutPipe()
	commontest.OK(t, err)
	commontest.OK(t, killed.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	commontest.OK(t, err)
	folder := strings.TrimSpace(line)
	claim := func(buried error) {
		_, release, err := Claim(t.Context(), r.root, "", func(string) error { return buried })
		commontest.OK(t, err)
		t.Cleanup(func() { _ = release() })
	}
	if claim(nil); !there(folder) {
		t.Fatal("removed while it lived")
	}
	commontest.OK(t, killed.Process.Kill())
	_ = killed.Wait() // its error is that it was killed
	if claim(errors.New("a process does not end")); !there(folder) {
		t.Error("removed while a process worked there")
	}
	claim(nil)
	commontest.EqualIn(t, "it is still there", false, there(folder))
}

func there(folder string) bool {
	_, err := os.Stat(folder)
	return err == nil
}

// claimOnce is the main function of the test binary when it stands for a runner that claims a
// folder and is killed.
func claimOnce(root string) int {
	folder, _, err := Claim(context.Background(), root, "", nil)
	if err != nil || os.MkdirAll(filepath.Join(folder, ".mcp", "x", "workspace"), 0o700) != nil {
		return 1
	}
	_, _ = os.Stdout.WriteString(folder + "\n")
	time.Sleep(time.Hour) // until it is killed
	return 0
}
