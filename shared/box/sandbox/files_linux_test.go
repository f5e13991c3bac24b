package sandbox

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func write(t *testing.T, path string, mode os.FileMode) string {
	t.Helper()
	commontest.OK(t, os.WriteFile(path, []byte("as it was"), 0o600))
	commontest.OK(t, os.Chmod(path, mode))
	return path
}

func TestProgramReadsAndWritesItsWorkspaceAndTempOnly(t *testing.T) {
	everyHost(t, func(t *testing.T, h host) {
		p := h.policy(t)
		outside := h.folder(t)
		commontest.OK(t, os.Chmod(outside, 0o777))
		open := write(t, filepath.Join(outside, "open"), 0o666)
		in := func(name string) string { return filepath.Join(p.Workspace, name) }
		out := h.probe(t, p, "files",
			"write", in("mine"), "read", in("mine"), "append", in("mine"), "truncate", in("mine"), "mkdir", in("folder"),
			"rename", in("mine"), "write", filepath.Join(p.Temp, "scratch"), "read", "/etc/hostname", "list", "/usr", "write", "/dev/null")
		expect(t, out, "write mine=ok", "read mine=ok", "append mine=ok", "truncate mine=ok", "mkdir folder=ok",
			"rename mine=ok", "write scratch=ok", "read hostname=ok", "list usr=ok", "write null=ok")
		out = h.probe(t, p, "files",
			"read", open, "write", open, "append", open, "truncate", open, "remove", open, "link", open, "through", open,
			"list", outside, "write", filepath.Join(outside, "new"), "mkdir", filepath.Join(outside, "dir"),
			"write", "/tmp/new", "write", "/var/tmp/new", "write", "/etc/new", "list", "/root", "list", "/tmp")
		expect(t, out, "read open=EACCES", "write open=EACCES", "append open=EACCES", "truncate open=EACCES",
			"remove open=EACCES", "through open=EACCES", "list "+filepath.Base(outside)+"=EACCES", "write new=EACCES",
			"mkdir dir=EACCES", "list root=EACCES", "list tmp=EACCES")
		if strings.Contains(out, "=ok") {
			t.Errorf("something outside was possible:\n%s", out)
		}
		if raw, err := os.ReadFile(open); err != nil || string(raw) != "as it was" {
			t.Errorf("the file outside is now %q, %v", raw, err)
		}
	})
}

func TestProgramWithItsOwnUserOwnsItsFolders(t *testing.T) {
	h := host{uid: os.Getuid()}
	p := h.policy(t)
	commontest.OK(t, os.MkdirAll(filepath.Join(p.Workspace, "sub"), 0o755))
	before := write(t, filepath.Join(p.Workspace, "sub", "before"), 0o644)
	cached := write(t, filepath.Join(filepath.Dir(p.Workspace), "cached"), 0o644)
	commontest.OK(t, os.Link(cached, filepath.Join(p.Workspace, "cached")))
	foreign := write(t, filepath.Join(filepath.Dir(p.Workspace), "foreign"), 0o600)
	commontest.OK(t, os.Symlink(foreign, filepath.Join(p.Workspace, "link")))
	expect(t, h.probe(t, p, "files", "append", before), "append before=ok")
	s, err := New(p, Probe())
	commontest.OK(t, err)
	user := cmp.Or(s.user, uint32(os.Getuid()))
	for path, want := range map[string]uint32{
		p.Workspace: user, p.Temp: user, before: user,
		// A file that has several names, or that is reached through a link, keeps its
		// owner.
		cached: uint32(os.Getuid()), foreign: uint32(os.Getuid()),
	} {
		t.Run(path, func(t *testing.T) {
			var st unix.Stat_t
			commontest.OK(t, unix.Lstat(path, &st))
			commontest.Equal(t, want, st.Uid)
		})
	}
	if info, err := os.Stat(p.Workspace); err != nil || s.user != 0 && info.Mode().Perm() != 0o700 {
		t.Errorf("the workspace has mode %v, %v", info.Mode(), err)
	}
}

func TestSetuidProgramsAndNamespacesDoNotHelp(t *testing.T) {
	everyHost(t, func(t *testing.T, h host) {
		p := h.policy(t)
		dir := h.folder(t)
		p.Read = []string{dir}
		id := filepath.Join(dir, "id")
		raw, err := os.ReadFile(interpreter(t, "id", "it is in coreutils"))
		commontest.OK(t, err)
		commontest.OK(t, os.WriteFile(id, raw, 0o755))
		commontest.OK(t, os.Chown(id, os.Getuid(), os.Getgid()))
		commontest.OK(t, os.Chmod(id, 0o755|os.ModeSetuid|os.ModeSetgid))
		if h.uid == 0 {
			groups, err := syscall.Getgroups()
			commontest.OK(t, errors.Join(err, syscall.Setgroups([]int{54321})))
			defer func() { _ = syscall.Setgroups(groups) }()
		}
		out := h.probe(t, p, "privileges", id)
		expect(t, out, "CapInh=", "CapPrm=", "CapEff=", "CapAmb=", "NoNewPrivs=1", "Seccomp=2", "setuid=EPERM",
			"userns=EPERM", "clone userns=EPERM", "mount=EPERM", "chroot=EPERM", "keys=EPERM")
		if h.uid == 0 && Probe().Users > 0 {
			expect(t, out, "Groups=") // not those of the runner
		}
		if strings.Contains(out, "id 0=ok") || !strings.Contains(out, "id ") {
			t.Errorf("a setuid program became root:\n%s", out)
		}
	})
}

func TestRootThatKeepsItsUserHasNoCapability(t *testing.T) {
	h := host{uid: os.Getuid()}
	p := h.policy(t)
	p.KeepUser = true
	expect(t, h.probe(t, p, "privileges", "/usr/bin/id"), "CapPrm=", "CapEff=", "mount=EPERM", "chroot=EPERM",
		"id "+strconv.Itoa(os.Getuid())+"=ok")
	shadow := h.probe(t, p, "files", "append", "/etc/passwd", "write", "/etc/new")
	expect(t, shadow, "append passwd=EACCES", "write new=EACCES")
}

func TestProgramWithoutWorkspaceWritesNowhere(t *testing.T) {
	everyHost(t, func(t *testing.T, h host) {
		out := h.probe(t, Policy{}, "files", "write", "/tmp/new", "write", "/var/tmp/new", "mkdir", "/dev/new")
		if strings.Contains(out, "=ok") {
			t.Error(out)
		}
	})
}

// A folder is open to others only if they may both list and enter it.
func TestPartsThatAreOpenToOthers(t *testing.T) {
	root := t.TempDir()
	commontest.OK(t, os.Chmod(root, 0o755))
	for name, mode := range map[string]os.FileMode{"open": 0o755, "listed": 0o754, "entered": 0o751, "shut": 0o750} {
		commontest.OK(t, os.Mkdir(filepath.Join(root, name), 0o755))
		write(t, filepath.Join(root, name, "file"), 0o644)
		commontest.OK(t, os.Chmod(filepath.Join(root, name), mode))
	}
	if parts, whole := openToOthers(root, 2); whole || !slices.Equal(parts, []string{filepath.Join(root, "open")}) {
		t.Errorf("open are %q, the whole %v", parts, whole)
	}
}
