package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// What processes share, keep in files of memory, and have together counts, too.
func TestMemoryOfEveryKindIsLimited(t *testing.T) {
	everyHost(t, func(t *testing.T, h host) {
		for _, kind := range []string{"shared", "memfd", "file", "children"} {
			t.Run(kind, func(t *testing.T) {
				p := h.policy(t)
				p.Memory = 64 * mib
				r := h.run(t, job{Policy: p, Path: prober(t), Args: []string{"hog", kind, "200"}})
				if kind == "file" && !h.ownUser() {
					commontest.Contains(t, "it has the folder of shared memory", "filled=EACCES", r.out)
					return
				}
				commontest.EqualIn(t, "it had 200 MiB and ended", 128+int(syscall.SIGKILL), r.code)
			})
		}
	})
}

func TestWhoExceedsItsMemoryIsToldApart(t *testing.T) {
	for kind, want := range map[string]bool{"shared": true, "none": false} {
		t.Run(kind, func(t *testing.T) {
			s, err := New(Policy{Memory: 64 * mib, Workspace: filepath.Join(host{uid: os.Getuid()}.folder(t), "workspace")}, Probe())
			commontest.OK(t, err)
			j := job{Policy: s.policy, Path: prober(t), Args: []string{"hog", kind, "200"}}
			in, cmd, err := j.start(nil, nil, nil)
			commontest.OK(t, err)
			if !want {
				_ = cmd.Process.Kill()
			}
			_ = cmd.Wait()
			commontest.EqualIn(t, kind, want, in.Exceeded())
			commontest.Check(t, in.End())
		})
	}
}

// A file in memory costs the kernel memory although it is empty, and the watch time.
func TestEmptyFilesInMemoryCount(t *testing.T) {
	dir := t.TempDir()
	for i := range 100 {
		commontest.OK(t, os.Symlink("nowhere", filepath.Join(dir, fmt.Sprint(i))))
	}
	if held := usedIn(dir, uint32(os.Getuid()), map[uint64]bool{}); held < 100*inode {
		t.Errorf("they count %d bytes", held)
	}
}

func TestMemoryThatProcessesHaveInCommonCountsOnce(t *testing.T) {
	python := interpreter(t, "python3", "for instance with apt-get install python3")
	const script = `
import os, time
held = bytearray(b"x") * (48 << 20)
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        time.sleep(0.7)
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
print("done")`
	everyHost(t, func(t *testing.T, h host) {
		p := h.policy(t)
		p.Memory = 96 * mib
		expect(t, h.run(t, job{Policy: p, Path: python, Args: []string{"-c", script}}).out, "done")
	})
}

func TestNothingOfAUserOfItsOwnOutlivesItInFoldersForEverybody(t *testing.T) {
	h := host{uid: os.Getuid()}
	if !h.ownUser() {
		return // TestThisMachineCanShowEveryGuard says so
	}
	p := h.policy(t)
	p.Write = []string{"/tmp"}
	s, err := New(p, Probe())
	commontest.OK(t, err)
	j := job{Policy: p, Path: prober(t), Args: []string{"leave"}}
	var out strings.Builder
	in, cmd, err := j.start(nil, &out, &out)
	if err == nil {
		err = cmd.Wait()
	}
	commontest.OK(t, err)
	expect(t, out.String(), "/dev/shm=ok", "/tmp=ok")
	commontest.OK(t, in.End())
	uid, _ := s.User()
	for _, folder := range []string{"/dev/shm", "/tmp"} {
		if _, err := os.Lstat(filepath.Join(folder, fmt.Sprintf("dormouse-left-%d", uid))); !os.IsNotExist(err) {
			t.Errorf("its files are still in %s: %v", folder, err)
		}
	}
	if _, err := os.Stat(p.Workspace); err != nil {
		t.Errorf("its workspace is gone: %v", err)
	}
}
