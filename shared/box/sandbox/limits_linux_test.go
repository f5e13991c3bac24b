package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

const mib = 1 << 20

func TestMemoryLimitLeavesInterpretersTheirAddressSpace(t *testing.T) {
	const eat = (256*mib+Reserved)/mib + 50 // MiB, more than the limit allows
	for _, c := range []struct{ name, hello, hog, from string }{
		{"node", "console.log('hello')", fmt.Sprintf("const all=[];for(let i=0;i<%d;i++)all.push(Buffer.alloc(1<<20));console.log('full')", eat), "from https://nodejs.org"},
		{"python3", "print('hello')", fmt.Sprintf("all=bytearray(%d<<20); print('full')", eat), "for instance with apt-get install python3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := interpreter(t, c.name, c.from)
			flag := map[string]string{"node": "-e", "python3": "-c"}[c.name]
			everyHost(t, func(t *testing.T, h host) {
				p := h.policy(t)
				p.Memory = 256 * mib
				expect(t, h.run(t, job{Policy: p, Path: path, Args: []string{flag, c.hello}}).out, "hello")
				if r := h.run(t, job{Policy: p, Path: path, Args: []string{flag, c.hog}}); r.code == 0 || strings.Contains(r.out, "full") {
					t.Errorf("it had %d MiB and exited with %d", eat, r.code)
				}
				p.Memory = 0
				expect(t, h.run(t, job{Policy: p, Path: path, Args: []string{flag, c.hog}}).out, "full")
			})
		})
	}
}

func TestProcessLimitBitesForAUserOfItsOwn(t *testing.T) {
	everyHost(t, func(t *testing.T, h host) {
		p := h.policy(t)
		p.Processes = 40
		if !h.ownUser() {
			p.Demand = []Guard{GuardProcesses}
			r := h.run(t, job{Policy: p, Path: prober(t), Args: []string{"threads", "1"}})
			if r.code == 0 || !strings.Contains(r.out, "processes") {
				t.Errorf("exit code %d, %s", r.code, r.out)
			}
			return
		}
		out := h.probe(t, p, "threads", "100")
		expect(t, out, "next=EAGAIN")
		var n int
		if _, err := fmt.Sscanf(out, "started=%d", &n); err != nil || n < 1 || n > 40 {
			t.Errorf("%d processes, %v", n, err)
		}
	})
}

func TestCPULimitCannotBeUndone(t *testing.T) {
	everyHost(t, func(t *testing.T, h host) {
		p := h.policy(t)
		p.CPUs = 0.5
		expect(t, h.probe(t, p, "cpus"), "cpus 1=ok", "more=EPERM")
	})
}

// A program that has the user of its runner could leave it without a processor.
func TestSchedulingIsForTheCallingThreadOnly(t *testing.T) {
	everyHost(t, func(t *testing.T, h host) {
		expect(
			t, h.probe(t, h.policy(t), "schedule"), "own priority=ok", "own scheduler=ok", "own disk=ok", "own processors=ok",
			"named priority=EPERM", "named scheduler=EPERM", "named disk=EPERM", "named processors=EPERM", "of the user=EPERM",
		)
	})
}

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
	for _, folder := range []string{"/dev/shm", "/tmp"} {
		if _, err := os.Lstat(filepath.Join(folder, fmt.Sprintf("dormouse-left-%d", s.user))); !os.IsNotExist(err) {
			t.Errorf("its files are still in %s: %v", folder, err)
		}
	}
	_, err = os.Stat(p.Workspace)
	commontest.CheckIn(t, "its workspace is gone", err)
}

// fakeCgroups makes the files that the kernel would have for the cgroups dirs, below a mount. It
// also makes the files in /proc of a process in the cgroup own.
func fakeCgroups(t *testing.T, own, controllers string, dirs ...string) (proc, mount string) {
	t.Helper()
	mount, proc = filepath.Join(t.TempDir(), "cgroup"), t.TempDir()
	for _, dir := range dirs {
		commontest.OK(t, os.MkdirAll(filepath.Join(mount, dir), 0o755))
		for name, text := range map[string]string{"cgroup.controllers": controllers, "cgroup.procs": "", "cgroup.subtree_control": ""} {
			put(t, filepath.Join(mount, dir, name), text)
		}
	}
	put(t, filepath.Join(proc, "cgroup"), "4:memory:/elsewhere\n0::"+own+"\n")
	put(t, filepath.Join(proc, "mountinfo"), "25 1 8:1 / / rw - ext4 /dev/root rw\n30 25 0:26 / "+mount+" rw,nosuid - cgroup2 cgroup2 rw\n")
	return proc, mount
}

func put(t *testing.T, path, text string) {
	t.Helper()
	commontest.OK(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestOnlyCgroupsThatWereLeftToUsAreUsed(t *testing.T) {
	const all = "cpu io memory pids"
	for name, c := range map[string]struct {
		own, controllers, mark, want string // mark is the cgroup that systemd has marked
	}{
		"the root of a container":     {own: "/", controllers: all, want: "/"},
		"no controller of memory":     {own: "/", controllers: "hugetlb"},
		"a service":                   {own: "/a.service", controllers: all},
		"a service with Delegate=yes": {own: "/a.service", controllers: all, mark: "/a.service", want: "/a.service"},
		"a cgroup of a service's own": {own: "/a.service/x", controllers: all, mark: "/a.service"},
	} {
		t.Run(name, func(t *testing.T) {
			proc, mount := fakeCgroups(t, c.own, c.controllers, "/", "/a.service", "/a.service/x")
			if c.mark != "" {
				if err := unix.Setxattr(filepath.Join(mount, c.mark), "user.delegate", []byte("1"), 0); err != nil {
					t.Log("not shown: the folder for tests keeps no extended attributes:", err)
					return
				}
			}
			want := ""
			if c.want != "" {
				want = filepath.Join(mount, c.want)
			}
			commontest.Equal(t, want, findCgroups(proc))
		})
	}
}

func TestACgroupHasTheLimitsOfItsPolicy(t *testing.T) {
	_, mount := fakeCgroups(t, "/", "memory pids", "/")
	put(t, filepath.Join(mount, "cgroup.type"), "domain\n")
	put(t, filepath.Join(mount, "cgroup.procs"), "12\n13\n")
	killed, ours := filepath.Join(mount, "server-4194305-1"), filepath.Join(mount, fmt.Sprintf("server-%d-1", os.Getpid()))
	for _, dir := range []string{killed, ours} { // no pid is above 4194304
		commontest.OK(t, os.Mkdir(dir, 0o755))
	}
	g, err := newCgroup(mount, Policy{Memory: 64 * mib, Processes: 5})
	commontest.OK(t, err)
	if kill, err := os.ReadFile(filepath.Join(killed, "cgroup.kill")); string(kill) != "1" {
		t.Errorf("what a killed runner left runs on: %v", err)
	}
	_, err = os.Stat(ours)
	commontest.CheckIn(t, "another one of this runner is gone", err)
	for path, want := range map[string]string{
		g.file("memory.max"): "67108864", g.file("memory.swap.max"): "0", g.file("memory.oom.group"): "1", g.file("pids.max"): "5",
		filepath.Join(mount, "cgroup.subtree_control"):   "+memory +pids",
		filepath.Join(mount, "dormouse", "cgroup.procs"): "13", // the last of those that moved
	} {
		t.Run(path, func(t *testing.T) {
			if got, err := os.ReadFile(path); string(got) != want {
				t.Errorf("%s: %q %v, want %q", path, got, err, want)
			}
		})
	}
	for text, want := range map[string]bool{"low 0\noom 1\noom_kill 0\noom_group_kill 0\n": false, "oom 3\noom_kill 12\n": true, "": false} {
		t.Run(text, func(t *testing.T) {
			put(t, g.file("memory.events"), text)
			commontest.Equal(t, want, g.exceeded())
		})
	}
	if _, err := newCgroup(filepath.Join(mount, "none"), Policy{Memory: 1}); err == nil {
		t.Error("a cgroup where none can be made")
	}
}

// This test uses real cgroups of the kernel. It needs no controllers.
func TestAProgramIsInItsCgroupFromItsFirstMomentAndEndsWithIt(t *testing.T) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	commontest.OK(t, err)
	dir := ""
	for line := range strings.Lines(string(mounts)) {
		if before, after, _ := strings.Cut(line, " - "); strings.HasPrefix(after, "cgroup2 ") {
			dir, err = os.MkdirTemp(strings.Fields(before)[4], "dormouse-test-") //nolint:usetesting // a cgroup is made in the mount
		}
	}
	if dir == "" || err != nil {
		t.Log("not shown: this machine has no cgroup of version 2 that its user may write:", err)
		return
	}
	g := cgroup(dir)
	sleep := interpreter(t, "sleep", "for instance with apt-get install coreutils")
	s, err := New(Policy{Read: []string{"/"}, KeepUser: true}, Probe())
	commontest.OK(t, err)
	o := s.order()
	o.Group, o.Path, o.Args, o.Dir = g, []byte(sleep), texts([]string{"sleep", "1000"}), []byte("/")
	cmd := &exec.Cmd{}
	if v, err := shim(cmd, o); v != nil || err != nil {
		t.Fatal(v, err)
	}
	in, err := os.ReadFile(filepath.Join(procFile(cmd.Process.Pid, ""), "cgroup"))
	commontest.OK(t, err)
	commontest.Contains(t, "it is in", "/"+filepath.Base(dir)+"\n", string(in))
	commontest.Check(t, g.end())
	if err := cmd.Wait(); err == nil {
		t.Error("it ended by itself")
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the cgroup is there: %v", err)
	}
	commontest.CheckIn(t, "once more", g.end())
}
