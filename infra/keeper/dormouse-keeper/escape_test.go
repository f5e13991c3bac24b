package main

import (
	"archive/tar"
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

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

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
