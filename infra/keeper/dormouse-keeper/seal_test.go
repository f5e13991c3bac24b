package main

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/keeper/box"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// intruderRole is the role of a process that is sealed as a sentry is and has the same user, but
// lacks the filter of gVisor. runnerRole is that of a process in the place of the program that
// starts keepers.
const (
	intruderRole = "intruder"
	runnerRole   = "runner"
)

// intrude does each deed and writes a line about it.
func intrude(deeds []string) {
	for _, deed := range deeds {
		verb, operand, _ := strings.Cut(deed, ":")
		err := harm(verb, operand)
		said := "done"
		if err != nil {
			said = "refused: " + err.Error()
		}
		_, _ = fmt.Fprintf(os.Stdout, "%s %s\n", deed, said) // the test reads it
	}
}

// harm does one deed, and returns the error with which the system refuses it.
func harm(verb, operand string) error {
	pid, _ := strconv.Atoi(operand)
	switch verb {
	case "attach":
		if err := unix.PtraceAttach(pid); err != nil {
			return err
		}
		if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
			return err
		}
		return unix.PtraceDetach(pid)
	case "read":
		_, err := unix.ProcessVMReadv(pid, []unix.Iovec{}, []unix.RemoteIovec{}, 0)
		return err
	case "signal":
		return unix.Kill(pid, unix.SIGCONT)
	case "open":
		f, err := os.Open(operand)
		if err == nil {
			err = f.Close()
		}
		return err
	case "create":
		return os.WriteFile(operand, nil, 0o600)
	case "tcp", "unix":
		c, err := new(net.Dialer).DialContext(context.Background(), verb, operand)
		if err == nil {
			err = c.Close()
		}
		return err
	}
	return fmt.Errorf("no deed %q", verb)
}

// runs starts a command, waits until it writes a line, and ends it with the test.
func runs(t *testing.T, cmd *exec.Cmd, line string) *exec.Cmd {
	t.Helper()
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() {
		if err := in.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
		_ = cmd.Process.Kill() // this fails if the process has ended
		_ = cmd.Wait()         // its error is that it was killed
	})
	lines := bufio.NewReader(out)
	for {
		got, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal("it ended: ", err)
		}
		if strings.TrimSpace(got) == line {
			go func() { _, _ = io.Copy(io.Discard, lines) }() // until its end
			return cmd
		}
	}
}

// children returns the processes that a process has started, and their children.
func children(t testing.TB, pid int) []int {
	t.Helper()
	all, err := descendants(pid)
	must(t, err)
	return all
}

func descendants(pid int) (all []int, err error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range tasks {
		text, failed := os.ReadFile(file)
		if errors.Is(failed, os.ErrNotExist) || errors.Is(failed, unix.ESRCH) {
			continue // the thread has ended
		}
		err = errors.Join(err, failed)
		for _, word := range strings.Fields(string(text)) {
			child, failed := strconv.Atoi(word)
			below, worse := descendants(child)
			all, err = append(append(all, child), below...), errors.Join(err, failed, worse)
		}
	}
	return all, err
}

func listens(t *testing.T, at string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", at)
	must(t, err)
	t.Cleanup(func() {
		check(t, l.Close())
	})
}

// A program that is sealed as a sentry is, but lacks the sentry's filter, reaches neither the
// keeper, the runner nor anything else of the machine.
func TestABrokenSentryReachesNobodyElse(t *testing.T) {
	host := served(t)
	ref := push(t, host, v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	for _, a := range []as{{1000, ""}, {1000, "landlock"}} {
		t.Run(a.String(), func(t *testing.T) {
			store := a.folder(t)
			runner := runs(t, a.command(runnerRole), "hidden").Process.Pid
			keeper := runs(t, a.command(keeperRole, "run", "--store", store, ref, "until:TERM"), "waits").Process.Pid
			others := children(t, keeper)
			if len(others) < 2 {
				t.Fatalf("the keeper has the children %v: no sentry with stubs", others)
			}
			abstract := "@keeper-test-" + strconv.Itoa(os.Getpid())
			listens(t, abstract)
			var deeds []string
			for _, pid := range []int{runner, keeper} {
				deeds = append(deeds, fmt.Sprintf("attach:%d", pid))
			}
			sealed := a.without == ""
			if sealed {
				for _, pid := range append([]int{runner, keeper}, others...) {
					deeds = append(deeds, fmt.Sprintf("attach:%d", pid), fmt.Sprintf("signal:%d", pid))
				}
				deeds = append(deeds, "open:/etc/passwd", "open:"+store, "open:/proc/self/environ", fmt.Sprintf("open:/proc/%d/mem", keeper), "create:"+store+"/x", "create:/tmp/keeper-test-x", "tcp:"+host, "unix:"+abstract)
			}
			// The keeper seals a sentry by the same role.
			out, err := a.command("keeper-seal", append([]string{"null", intruderRole}, deeds...)...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			r := ran{out: string(out)}
			for _, deed := range deeds {
				if said := r.says(deed); !strings.HasPrefix(said, "refused: ") || !strings.Contains(said, "not permitted") && !strings.Contains(said, "permission denied") {
					t.Errorf("%s: %s", deed, said)
				}
			}
			// Without the seal the same program succeeds, so the refusals above are due to the seal.
			plain, err := a.command(intruderRole, "open:/etc/passwd", "tcp:"+host, fmt.Sprintf("attach:%d", others[0])).CombinedOutput()
			if err != nil || strings.Contains(string(plain), "refused") {
				t.Errorf("unsealed: %v %s", err, plain)
			}
		})
	}
}

func TestAServerSeesNothingOfTheMachine(t *testing.T) {
	host := served(t)
	ref := push(t, host, v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	_, port, err := net.SplitHostPort(host)
	must(t, err)
	abstract := "@keeper-test-inside-" + strconv.Itoa(os.Getpid())
	listens(t, abstract)
	refused := map[string]string{ // root inside, by what it must get
		"socket:raw": "not permitted", "socket:packet": "not permitted", "socket:netfilter": "not supported", "unix:" + abstract: "refused", "unix:/var/run/docker.sock": "no such file",
		"call:" + strconv.Itoa(unix.SYS_IO_URING_SETUP): "not implemented", "call:" + strconv.Itoa(unix.SYS_BPF): "",
		"dial:127.0.0.1:" + port: "refused", "dial:10.55.0.1:" + port: "refused", "dial:169.254.169.254:80": "refused", "dial:0.0.0.0:" + port: "refused", "dial:localhost:" + port: "refused",
		"dial:198.18.0.9:80": "refused", "dial:[::ffff:127.0.0.1]:" + port: "refused", "dial:[::1]:" + port: "", "send:1.1.1.1:53": "refused", "read:/proc/1/root/etc/hostname": "no such file",
	}
	own, err := net.InterfaceAddrs()
	must(t, err)
	for _, at := range own {
		if ip, ok := at.(*net.IPNet); ok && ip.IP.To4() != nil {
			refused["dial:"+net.JoinHostPort(ip.IP.String(), port)] = "refused"
		}
	}
	deeds := []string{"read:/etc/resolv.conf", "read:/proc/mounts", "read:/proc/net/tcp", "env:KEEPER_SECRET"}
	for deed := range refused {
		deeds = append(deeds, deed)
	}
	t.Setenv("KEEPER_SECRET", "s3cret")
	everywhere(t, func(t *testing.T, a as) {
		r := keep(t, a, "", append([]string{"run", "--store", a.folder(t), ref}, deeds...)...)
		for deed, want := range refused {
			if said := r.says(deed); !strings.HasPrefix(said, "error ") || !strings.Contains(said, want) {
				t.Errorf("%s: %s", deed, said)
			}
		}
		if strings.Contains(r.out, "s3cret") || strings.Contains(r.says("read:/proc/mounts"), "/work") || r.code != 0 {
			t.Errorf("%+v", r)
		}
	})
}

func TestWhatCannotBeSealedDoesNotRun(t *testing.T) {
	host := served(t)
	ref := push(t, host, v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	a := as{1000, "ptrace"}
	for _, args := range [][]string{{"probe"}, {"run", "--store", a.folder(t), ref, "id"}, {"run", "--system", "--folder", "/usr:/usr:ro", "--", "/usr/bin/id"}} {
		r := keep(t, a, "", args...)
		if r.code != failed || r.out != "" || !strings.Contains(r.errs, "the box did not run") || !strings.Contains(r.errs, "ptrace") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r := keep(t, as{1000, ""}, "", "probe"); r.code != 0 || r.out != fmt.Sprintf("{\"landlock\":%d}\n", box.Landlocks()) {
		t.Errorf("%+v", r)
	}
}

// The hostile server of TestEscapeRoom runs as root in a box. It is told of things that this
// machine has, and reaches none of them. Without a box the same program reaches all of them.
func TestEscapeRoomSealed(t *testing.T) {
	program := filepath.Join(t.TempDir(), "escape")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./infra/runner/testdata/escape")
	build.Dir, build.Env = "../../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(program)
	must(t, err)
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/escape"}}, layer(t, entry("escape", tar.TypeReg, 0o755, string(text))))
	everywhere(t, func(t *testing.T, a as) {
		told, hits := prey(t, a)
		r := keep(t, a, "", append([]string{"run", "--store", a.folder(t), "--memory", "1000", ref, "short", "/tmp"}, told...)...)
		if r.code != 0 {
			t.Fatalf("%+v", r)
		}
		counts := map[string]int{}
		for line := range strings.Lines(r.out) {
			line = strings.TrimSpace(line)
			if kind, ok := strings.CutPrefix(line, "tried "); ok {
				name, n, _ := strings.Cut(kind, " ")
				counts[name], _ = strconv.Atoi(n)
			}
			if strings.HasPrefix(line, "leak") || strings.Contains(line, "netlink/") && !strings.HasSuffix(line, "netlink/0") && !strings.HasSuffix(line, "netlink/15") {
				t.Errorf("out of the seal: %s", line)
			}
			for _, of := range told { // other things that are open belong to the box: it has users and numbers of shared memory of its own
				kind, name, _ := strings.Cut(of, "=")
				if kind != "memory" && !strings.Contains(line, "of the user") && strings.HasPrefix(line, "open ") && slices.Contains(strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == ',' }), name) {
					t.Errorf("out of the seal: %s", line)
				}
			}
		}
		t.Log(counts)
		for _, kind := range []string{"socket", "pair", "family", "kernel", "privileges", "memory", "file", "process", "signal", "schedule", "memfd", "tcp"} {
			if counts[kind] == 0 {
				t.Errorf("nothing of kind %s was tried: %s", kind, r.out)
			}
		}
		equal(t, "messages that reached the sockets of others", 0, hits.Load())
		cmd := exec.CommandContext(t.Context(), program, append([]string{"short", a.folder(t), "only=1", "again=1"}, told...)...)
		control, _ := cmd.Output() // its lines say what it did
		for _, open := range []string{"open socket", "leak file", "leak memory", "open process", "open signal", "open schedule", "open tcp"} {
			has(t, "without a seal", open+" ", string(control))
		}
	})
}

// prey makes files, sockets, a process and shared memory for a hostile server to attack. told
// names them to the server, and hits counts the connections to the sockets.
func prey(t *testing.T, a as) (told []string, hits *atomic.Int64) {
	t.Helper()
	hits = &atomic.Int64{}
	dir := a.folder(t)
	secret := fmt.Sprintf("escape-secret-%016x", time.Now().UnixNano())
	file := filepath.Join(dir, "secret")
	must(t, os.WriteFile(file, []byte(secret), 0o666))
	abstract := "@escape-" + strconv.Itoa(os.Getpid()) + filepath.Base(dir)
	var tcp string
	for _, at := range [][2]string{{"tcp", "127.0.0.1:0"}, {"unix", filepath.Join(dir, "socket")}, {"unix", abstract}} {
		l, err := new(net.ListenConfig).Listen(t.Context(), at[0], at[1])
		must(t, err)
		t.Cleanup(func() { _ = l.Close() }) // the program may have removed its file
		if at[0] == "tcp" {
			tcp = l.Addr().String()
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				hits.Add(1)
				_ = c.Close() // nothing is said
			}
		}()
	}
	if err := os.Chmod(filepath.Join(dir, "socket"), 0o777); err != nil { //nolint:gosec // everybody may connect
		t.Fatal(err)
	}
	other := exec.CommandContext(t.Context(), "cat")
	other.Env = []string{"SECRET=" + secret}
	in, err := other.StdinPipe()
	if err == nil {
		other.Stdout = io.Discard
		err = other.Start()
	}
	must(t, err)
	t.Cleanup(func() {
		_ = in.Close()   // then it ends
		_ = other.Wait() // or was ended
	})
	shm, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, 0o666|unix.IPC_CREAT)
	must(t, err)
	memory, err := unix.SysvShmAttach(shm, 0, 0)
	must(t, err)
	copy(memory, secret)
	t.Cleanup(func() {
		check(t, unix.SysvShmDetach(memory))
		if _, err := unix.SysvShmCtl(shm, unix.IPC_RMID, nil); err != nil {
			t.Error(err)
		}
	})
	pid := strconv.Itoa(other.Process.Pid)
	return []string{"file=" + file, "folder=" + dir, "socket=" + filepath.Join(dir, "socket"), "socket=" + abstract, "tcp=" + tcp, "pid=" + pid, "memory=" + strconv.Itoa(shm)}, hits
}
