package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/dormouse-mcp/dormouse/infra/keeper/box"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

// The test program is also the keeper, and a program that has no more rights than a task of ECS.
const (
	taskRole   = "simulated-task"   // UID WITHOUT PROGRAM ARG…: see task
	keeperRole = "keeper-in-a-test" // the keeper itself
)

var serverProgram string

func TestMain(m *testing.M) {
	box.Role()
	switch os.Args[0] {
	case taskRole:
		task(os.Args[1], os.Args[2], os.Args[3:])
	case keeperRole:
		main()
	case runnerRole:
		need(box.Hide())
		_, _ = fmt.Fprintln(os.Stdout, "hidden") // the test reads it
		_, _ = io.Copy(io.Discard, os.Stdin)     // until the test ends
	case initRole:
		manyBoxes(os.Args[1:])
	case parentRole:
		cmd := &exec.Cmd{Path: "/proc/self/exe", Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr}
		need(cmd.Run())
	case networkRole:
		network(os.Args[1], os.Args[2:])
	case laterRole:
		later(os.Args[1], os.Args[2:])
	case intruderRole:
		intrude(os.Args[1:])
	default:
		os.Exit(tests(m))
	}
	os.Exit(0)
}

// need ends this program if there is an error.
func need(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// tests builds the server, and runs the tests.
func tests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "keeper-test")
	need(err)
	defer func() { _ = os.RemoveAll(dir) }() // it is in a folder for temporary files
	serverProgram = filepath.Join(dir, "server")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", serverProgram, "./testdata/server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		log.Printf("%v: %s", err, out)
		return 1
	}
	return m.Run()
}

// must ends a test that cannot go on.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check reports an error, if there is one. The test goes on.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// equal reports an error if got is not want.
func equal[T comparable](t testing.TB, what string, want, got T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, not %v", what, got, want)
	}
}

// has reports an error if text does not contain part.
func has(t testing.TB, what, part, text string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s: %s, not %s", what, text, part)
	}
}

// # A simulated task

// as says as which user a keeper runs, and what its system lacks.
type as struct {
	uid     int    // 1000, or 0 with the rights that Docker gives to root
	without string // "", "landlock" or "ptrace"
}

func (a as) String() string {
	if a.without == "" {
		return fmt.Sprint("uid ", a.uid)
	}
	return fmt.Sprintf("uid %d without %s", a.uid, a.without)
}

// systems returns the users and systems for which a box must run. Only root can test both users.
func systems() []as {
	all := []as{{1000, ""}, {1000, "landlock"}}
	if os.Getuid() == 0 {
		all = append(all, as{0, ""}, as{0, "landlock"})
	}
	return all
}

// everywhere runs a test for each user and system.
func everywhere(t *testing.T, test func(t *testing.T, a as)) {
	t.Helper()
	for _, a := range systems() {
		t.Run(a.String(), func(t *testing.T) { test(t, a) })
	}
}

// command returns a command that runs a role of this program, or a program with its whole path,
// in a simulated task.
func (a as) command(role string, args ...string) *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: append([]string{taskRole, strconv.Itoa(a.uid), a.without, role}, args...)}
}

// task takes the rights from this process that a container does not have, and then executes role.
// It may make no user namespace, make no system call that the default filter of container engines
// refuses, and get no new privileges. A user who is not root has no capability.
func task(uid, without string, role []string) {
	runtime.LockOSThread()
	n, err := strconv.Atoi(uid)
	need(err)
	if os.Getuid() == 0 {
		// CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, NET_RAW, SYS_CHROOT, MKNOD, AUDIT_WRITE, SETFCAP
		docker := []int{0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
		for c := range 41 {
			if n != 0 || !slices.Contains(docker, c) {
				need(unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0))
			}
		}
		if n != 0 {
			need(unix.Setgroups(nil))
			need(unix.Setresgid(n, n, n))
			need(unix.Setresuid(n, n, n))
		}
	}
	need(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	need(filter(without))
	program := "/proc/self/exe"
	if filepath.IsAbs(role[0]) {
		program = role[0]
	}
	need(unix.Exec(program, role, os.Environ()))
}

// filter refuses what the default profile of container engines refuses without CAP_SYS_ADMIN.
func filter(without string) error {
	refused := []uint32{
		unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_MOUNT_SETATTR,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
		unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_QUOTACTL, unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_VHANGUP, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_FANOTIFY_INIT, unix.SYS_NFSSERVCTL, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY, unix.SYS_MOVE_PAGES, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME,
	}
	missing := []uint32{unix.SYS_CLONE3}
	switch without {
	case "landlock":
		missing = append(missing, unix.SYS_LANDLOCK_CREATE_RULESET)
	case "ptrace":
		refused = append(refused, unix.SYS_PTRACE)
	}
	const load, equal, set, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	answer := func(e syscall.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }
	code := []unix.SockFilter{{Code: load}}
	for errno, calls := range map[syscall.Errno][]uint32{unix.EPERM: refused, unix.ENOSYS: missing} {
		for _, nr := range calls {
			code = append(code, unix.SockFilter{Code: equal, Jf: 1, K: nr}, unix.SockFilter{Code: ret, K: answer(errno)})
		}
	}
	code = append(code, unix.SockFilter{Code: equal, Jf: 3, K: unix.SYS_CLONE}, unix.SockFilter{Code: load, K: 16},
		unix.SockFilter{Code: set, Jf: 1, K: 0x7E020000 | unix.CLONE_NEWTIME}, unix.SockFilter{Code: ret, K: answer(unix.EPERM)}, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return errno
	}
	return nil
}

// # Runs of the keeper

// ran is the output and the exit code of a keeper.
type ran struct {
	out, errs string
	code      int
}

func (r ran) says(deed string) string {
	for line := range strings.Lines(r.out) {
		if said, ok := strings.CutPrefix(line, deed+" "); ok {
			return strings.TrimSuffix(said, "\n")
		}
	}
	return "nothing"
}

// said checks what the server wrote about deeds.
func (r ran) said(t testing.TB, want map[string]string) {
	t.Helper()
	for deed, said := range want {
		equal(t, deed, said, r.says(deed))
	}
}

// ended checks the exit code.
func (r ran) ended(t testing.TB, code int) ran {
	t.Helper()
	if r.code != code {
		t.Fatalf("it did not exit with %d: %+v", code, r)
	}
	return r
}

// keep runs the keeper in a simulated task until it ends. in is its stdin.
func keep(t *testing.T, a as, in string, args ...string) ran {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := a.command(keeperRole, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return ran{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// owner returns the uid for folders of the user, -1 for the user of the test.
func (a as) owner() int {
	if os.Getuid() != 0 {
		return -1
	}
	return a.uid
}

// folder returns an empty folder of the user who runs the keeper.
func (a as) folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "keeper-store") //nolint:usetesting // only its maker may enter the parent of TempDir
	must(t, err)
	t.Cleanup(func() {
		check(t, os.RemoveAll(dir))
	})
	if os.Getuid() == 0 {
		must(t, os.Chown(dir, a.uid, a.uid))
	}
	return dir
}

// # Images

// entry returns one entry of a layer. more is the text of a file, or the target of a link.
func entry(name string, kind byte, mode int64, more ...string) tar.Header {
	h := tar.Header{Name: name, Typeflag: kind, Mode: mode, Format: tar.FormatPAX}
	if len(more) > 0 && kind == tar.TypeReg {
		h.Xattrs = map[string]string{"text": more[0]} //nolint:staticcheck // carries the text to layer
		h.Size = int64(len(more[0]))
	} else if len(more) > 0 {
		h.Linkname = more[0]
	}
	return h
}

// owned returns an entry that belongs to the user node.
func owned(name string, kind byte, mode int64, more ...string) tar.Header {
	h := entry(name, kind, mode, more...)
	h.Uid, h.Gid = 1001, 1002
	return h
}

func layer(t testing.TB, entries ...tar.Header) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		text := h.Xattrs["text"] //nolint:staticcheck // see entry
		h.Xattrs = nil           //nolint:staticcheck // see entry
		must(t, w.WriteHeader(&h))
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	must(t, w.Flush())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	must(t, err)
	return l
}

// withServer returns a layer with the server, and users.
func withServer(t testing.TB) v1.Layer {
	t.Helper()
	text, err := os.ReadFile(serverProgram)
	must(t, err)
	return layer(t, entry("server", tar.TypeReg, 0o755, string(text)),
		entry("etc/passwd", tar.TypeReg, 0o644, "root:x:0:0:root:/root:/bin/sh\nnode:x:1001:1002::/home/node:/bin/sh\n"),
		entry("etc/group", tar.TypeReg, 0o644, "root:x:0:\nnode:x:1002:\naudio:x:29:node\n"),
		entry("home/node/small.txt", tar.TypeReg, 0o644, "small"))
}

// served starts a registry on loopback and returns its address.
func served(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// pinned returns the name of an image that was pushed, by its digest.
func pinned(t *testing.T, ref string) string {
	t.Helper()
	parsed, err := name.ParseReference(ref)
	must(t, err)
	d, err := remote.Head(parsed)
	must(t, err)
	return parsed.Context().Name() + "@" + d.Digest.String()
}

// push makes an image and returns its name.
func push(t testing.TB, host string, c v1.Config, layers ...v1.Layer) string {
	t.Helper()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: c, RootFS: v1.RootFS{Type: "layers"}})
	if err == nil {
		img, err = mutate.AppendLayers(img, layers...)
	}
	must(t, err)
	ref := host + "/" + strings.ToLower(strings.NewReplacer("/", "-", " ", "-", "#", "-").Replace(t.Name())) + ":v1"
	parsed, err := name.ParseReference(ref)
	if err == nil {
		err = remote.Write(parsed, img)
	}
	must(t, err)
	return ref
}

// speaks sends a request of a client of Streamable HTTP. session is "" before there is one.
func speaks(ctx context.Context, method, url, session, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		r.Header.Set("Mcp-Session-Id", session)
	}
	return http.DefaultClient.Do(r)
}

// until waits for something of which no event tells.
func until(done func() bool) {
	for !done() {
		time.Sleep(20 * time.Millisecond)
	}
}
