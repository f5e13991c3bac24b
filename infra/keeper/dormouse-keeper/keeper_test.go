package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// Neither a capability, nor a user namespace, nor Landlock is needed.
func TestAServerRunsInASimulatedTask(t *testing.T) {
	host := served(t)
	ref := push(t, host, v1.Config{Entrypoint: []string{"/server"}, User: "node", WorkingDir: "/home/node", Env: []string{"A=image", "B=image"}}, withServer(t))
	for _, a := range systems() {
		t.Run(a.String(), func(t *testing.T) {
			store := a.folder(t)
			for range 2 { // from the registry, and from the store
				r := keep(t, a, "one\ntwo\n", "run", "--store", store, ref, "id", "where", "env:A", "env:HOME", "read:small.txt", "map:small.txt", "write:new=1", "read:new", "echo", "exit:7")
				want := map[string]string{"id": "1001 1002 [29]", "where": "/home/node", "env:A": "image", "env:HOME": "/home/node", "read:small.txt": "small", "map:small.txt": "small", "echo": "closed"}
				for deed, said := range want {
					if got := r.says(deed); got != said {
						t.Errorf("%s: %q, not %q", deed, got, said)
					}
				}
				if r.code != 7 || !strings.Contains(r.out, "one\ntwo\n") {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// A box that uses too much ends with a reason, and its neighbour does not.
func TestABoxThatUsesTooMuchEnds(t *testing.T) {
	a := as{1000, ""}
	dir := a.folder(t)
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	neighbour := runs(t, a.command(keeperRole, "run", "--store", dir, ref, "until:TERM"), "waits")
	for _, deed := range []string{"use:200", "fill:/tmp/x", "fill:/x", "fill:/dev/shm/x"} {
		r := keep(t, a, "", "run", "--store", dir, "--memory", "100", ref, deed)
		if r.code != 137 || !strings.Contains(r.errs, "may use 100") {
			t.Errorf("%s: %+v", deed, r)
		}
	}
	if r := keep(t, a, "", "run", "--store", dir, "--pids", "32", "--user", "node", ref, "fork:100"); r.says("fork:100") == "100" || r.says("fork:100") == "nothing" {
		t.Errorf("%+v", r)
	}
	if r := keep(t, a, "", "run", "--store", dir, "--read-only", ref, "write:/x=1", "write:/tmp/x=1"); r.says("write:/x=1") == "done" || r.says("write:/tmp/x=1") != "done" {
		t.Errorf("%+v", r)
	}
	if len(children(t, neighbour.Process.Pid)) < 2 {
		t.Error("the neighbour has ended, too")
	}
}

// A folder of the machine is the only thing of it that a server sees.
func TestAFolderOfTheMachine(t *testing.T) {
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	for _, a := range systems() {
		t.Run(a.String(), func(t *testing.T) {
			dir, folder := a.folder(t), a.folder(t)
			file := filepath.Join(folder, "note")
			if err := os.WriteFile(file, []byte("from outside"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/etc/passwd", filepath.Join(folder, "out")); err != nil {
				t.Fatal(err)
			}
			r := keep(t, a, "", "run", "--store", dir, "--folder", folder+":/mnt", "--folder", folder+":/ro:ro", ref, "read:/mnt/note", "write:/mnt/new=from inside", "write:/ro/new2=x", "read:/mnt/out", "read:/mnt/../../etc/hostname")
			if r.says("read:/mnt/note") != "from outside" || r.says("write:/mnt/new=from inside") != "done" || !strings.HasPrefix(r.says("write:/ro/new2=x"), "error") || strings.Contains(r.says("read:/mnt/out"), "daemon") {
				t.Errorf("%+v", r)
			}
			if text, err := os.ReadFile(filepath.Join(folder, "new")); string(text) != "from inside" || err != nil {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
}

// Whoever is killed, nothing of a box stays.
func TestNothingStaysOfAKilledKeeper(t *testing.T) {
	a := as{1000, ""}
	dir := a.folder(t)
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	folder := a.folder(t)
	t.Setenv("TMPDIR", folder)
	cmd := runs(t, a.command(keeperRole, "run", "--store", dir, "--folder", folder+":/mnt", ref, "until:TERM"), "waits")
	all := children(t, cmd.Process.Pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range all {
		for unix.Kill(pid, 0) == nil && !zombie(pid) {
			runtime.Gosched() // the kernel sends the signal when the parent is gone
		}
	}
	if left, err := filepath.Glob(filepath.Join(folder, "*")); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

// zombie reports whether a process waits for being reaped, by whoever is init here.
func zombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(text), ") ")
	return err == nil && strings.HasPrefix(after, "Z")
}

// A keeper passes the signal on, and the server says how it ends.
func TestAServerIsToldToEnd(t *testing.T) {
	a := as{1000, ""}
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	cmd := a.command(keeperRole, "run", "--store", a.folder(t), ref, "until:TERM", "exit:3")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "waits\n" || err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(lines)
	if err != nil || string(rest) != "until:TERM told\n" {
		t.Errorf("%q, %v", rest, err)
	}
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 3 { // its error is the code
		t.Errorf("%v", cmd.ProcessState)
	}
}
