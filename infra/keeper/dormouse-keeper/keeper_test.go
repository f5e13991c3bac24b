package main

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// A server runs without any capability, user namespace or Landlock.
func TestAServerRunsInASimulatedTask(t *testing.T) {
	host := served(t)
	ref := push(t, host, v1.Config{Entrypoint: []string{"/server"}, User: "node", WorkingDir: "/home/node", Env: []string{"A=image", "B=image"}}, withServer(t))
	everywhere(t, func(t *testing.T, a as) {
		store := a.folder(t)
		for range 2 { // from the registry, and from the store
			r := keep(t, a, "one\ntwo\n", "run", "--store", store, ref, "id", "where", "env:A", "env:HOME", "read:small.txt", "map:small.txt", "write:new=1", "read:new", "echo", "exit:7")
			want := map[string]string{"id": "1001 1002 [29]", "where": "/home/node", "env:A": "image", "env:HOME": "/home/node", "read:small.txt": "small", "map:small.txt": "small", "echo": "closed"}
			r.said(t, want)
			r.ended(t, 7)
			has(t, "output", "one\ntwo\n", r.out)
		}
	})
}

// With --written, what a server writes into its root is there at the next start, even if it
// leaves a process behind that goes on writing. What it writes into /tmp is not, and another
// image gets none of it.
func TestWhatAServerWroteComesBack(t *testing.T) {
	host := served(t)
	ref := push(t, host, v1.Config{Entrypoint: []string{"/server"}, User: "node"}, withServer(t), layer(t, owned("home/node", tar.TypeDir, 0o755), owned("home/node/image.txt", tar.TypeReg, 0o644)))
	ref = pinned(t, ref)
	other := push(t, host, v1.Config{Entrypoint: []string{"/server"}, User: "node"}, withServer(t), layer(t, owned("home/node", tar.TypeDir, 0o700)))
	everywhere(t, func(t *testing.T, a as) {
		dir, written := a.folder(t), a.folder(t)
		run := func(deeds ...string) ran {
			t.Helper()
			r := keep(t, a, "", append([]string{"run", "--store", dir, "--written", written, "--memory", "200"}, deeds...)...)
			if len(deeds) > 1 && r.code != 0 {
				t.Fatalf("%+v", r)
			}
			return r
		}
		run(ref, "write:/home/node/new=first", "write:/tmp/new=x", "write:/dev/shm/new=x", "remove:/home/node/image.txt", "pipe:/home/node/pipe", "listen:/home/node/socket")
		run(ref, "write:/home/node/more=second", "leave:/home/node/grows")
		r := run(ref, "id", "read:/home/node/new", "read:/home/node/more", "read:/tmp/new", "read:/dev/shm/new", "read:/home/node/image.txt", "read:/home/node/small.txt")
		r.said(t, map[string]string{"id": "1001 1002 [29]", "read:/home/node/new": "first", "read:/home/node/more": "second", "read:/home/node/small.txt": "small"})
		for _, deed := range []string{"read:/tmp/new", "read:/dev/shm/new", "read:/home/node/image.txt"} {
			has(t, deed, "no such file", r.says(deed))
		}
		keep(t, a, "", "run", "--store", dir, "--written", written, "--memory", "100", ref, "write:/home/node/new=lost", "fill:/home/node/x").ended(t, 137)
		equal(t, "after an end by force", "first", run(ref, "read:/home/node/new", "id").says("read:/home/node/new"))
		has(t, "in another image", "no such file", run(other, "read:/home/node/new", "id").says("read:/home/node/new"))
		if left, err := os.ReadDir(written); len(left) != 1 || err != nil {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

func TestABoxThatUsesTooMuchEnds(t *testing.T) {
	a := as{1000, ""}
	dir := a.folder(t)
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	neighbour := runs(t, a.command(keeperRole, "run", "--store", dir, ref, "until:TERM"), "waits")
	for _, deed := range []string{"use:200", "fill:/tmp/x", "fill:/x", "fill:/dev/shm/x", "hog:memfd", "hog:mapping", "hog:pipes", "hog:sockets", "hog:folders"} {
		r := keep(t, a, "", "run", "--store", dir, "--memory", "100", ref, deed)
		r.ended(t, 137)
		has(t, deed, "may use 100", r.errs)
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

func TestAFolderOfTheMachine(t *testing.T) {
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	everywhere(t, func(t *testing.T, a as) {
		dir, folder := a.folder(t), a.folder(t)
		file := filepath.Join(folder, "note")
		must(t, os.WriteFile(file, []byte("from outside"), 0o644))
		must(t, os.Symlink("/etc/passwd", filepath.Join(folder, "out")))
		r := keep(t, a, "", "run", "--store", dir, "--folder", folder+":/mnt", "--folder", folder+":/ro:ro", ref, "read:/mnt/note", "write:/mnt/new=from inside", "write:/ro/new2=x", "read:/mnt/out", "read:/mnt/../../etc/hostname")
		if r.says("read:/mnt/note") != "from outside" || r.says("write:/mnt/new=from inside") != "done" || !strings.HasPrefix(r.says("write:/ro/new2=x"), "error") || strings.Contains(r.says("read:/mnt/out"), "daemon") {
			t.Errorf("%+v", r)
		}
		if text, err := os.ReadFile(filepath.Join(folder, "new")); string(text) != "from inside" || err != nil {
			t.Errorf("%q, %v", text, err)
		}
	})
}

// With --system a server sees the folders of the machine that it was given, at their own paths
// and through the same symbolic links, and no others.
func TestAServerOfTheMachineItself(t *testing.T) {
	program, err := os.ReadFile(serverProgram)
	must(t, err)
	everywhere(t, func(t *testing.T, a as) {
		dir := a.folder(t)
		for _, folder := range []string{"real/bin", "work", "secret"} {
			err = errors.Join(err, os.MkdirAll(filepath.Join(dir, folder), 0o755), os.Chown(filepath.Join(dir, folder), a.owner(), -1))
		}
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "real/bin/server"), program, 0o755), os.WriteFile(filepath.Join(dir, "secret/key"), []byte("s3cret"), 0o644),
			os.Symlink("real", filepath.Join(dir, "link")), os.Symlink(filepath.Join(dir, "link/bin/server"), filepath.Join(dir, "program")))
		must(t, err)
		at := func(name string) string { return filepath.Join(dir, name) }
		folder := func(name, mode string) []string { return []string{"--folder", name + ":" + name + mode} }
		args := slices.Concat([]string{"run", "--system", "--read-only", "--workdir", at("work")}, folder(at("program"), ":ro"), folder(at("link/bin"), ":fixed"), folder("/usr", ":fixed"), folder("/bin", ":fixed"), folder(at("work"), ""),
			[]string{"--", at("program"), "where", "env:HOME", "write:new=from inside", "write:/tmp/x=1", "write:" + at("real/bin/x") + "=1", "write:/usr/keeper-test=1", "write:/etc/x=1", "read:" + at("link/bin/../../secret/key"), "read:" + at("secret/key"), "read:/etc/shadow", "read:/proc/1/root" + at("secret/key")})
		r := keep(t, a, "", args...)
		for deed, want := range map[string]string{
			"where": at("work"), "env:HOME": "/tmp", "write:new=from inside": "done", "write:/tmp/x=1": "done", "write:" + at("real/bin/x") + "=1": "error ", "write:/usr/keeper-test=1": "error ", "write:/etc/x=1": "error ",
			"read:" + at("link/bin/../../secret/key"): "error ", "read:" + at("secret/key"): "no such file", "read:/etc/shadow": "no such file", "read:/proc/1/root" + at("secret/key"): "no such file",
		} {
			has(t, deed, want, r.says(deed))
		}
		if text, err := os.ReadFile(at("work/new")); string(text) != "from inside" || err != nil || r.code != 0 {
			t.Errorf("%q, %v, %+v", text, err, r)
		}
	})
}

// Each folder of this machine is mounted once, in the mode that allows the most.
func TestFoldersBelowOthers(t *testing.T) {
	dir := t.TempDir()
	for _, folder := range []string{"fixed/below", "user/install", "user/data", "work", "both"} {
		must(t, os.MkdirAll(filepath.Join(dir, folder), 0o755))
	}
	var o options
	for _, f := range []string{"fixed:fixed", "fixed/below:ro", "user:ro", "user/install:fixed", "user/data:ro", "work:fixed", "work:", "work:ro", "both:fixed", "both:ro", "both:fixed"} {
		name, mode, _ := strings.Cut(f, ":")
		at := filepath.Join(dir, name)
		o.folders = append(o.folders, strings.TrimSuffix(at+":"+at+":"+mode, ":"))
	}
	i, err := o.base(store(t))
	must(t, err)
	defer func() { _ = i.File.Close() }()
	var got []string
	for _, f := range o.folders {
		at, rest, _ := strings.Cut(f, ":")
		got = append(got, strings.TrimPrefix(at, dir+"/")+strings.TrimPrefix(rest, at))
	}
	if want := []string{"both:ro", "fixed:fixed", "user:ro", "user/install:fixed", "work"}; !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
}

// Of a hundred boxes, twenty at a time, some end by themselves. Of the others the keeper, or its
// parent, is killed at different moments. No process and no temporary file is left.
func TestNothingStaysHoweverABoxEnds(t *testing.T) {
	a := as{1000, ""}
	dir, folder := a.folder(t), a.folder(t)
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	keep(t, a, "", "run", "--store", dir, ref, "id").ended(t, 0)
	t.Setenv("TMPDIR", folder)
	run := []string{"run", "--store", dir, "--folder", folder + ":/mnt", "--memory", "400", "--written"}
	written := filepath.Join(folder, "written")
	out, err := a.command(initRole, append(run, written, ref)...).Output()
	if err != nil || strings.TrimSpace(string(out)) != "100 boxes, 20 ended by themselves, nobody is left" {
		exit := &exec.ExitError{}
		_ = errors.As(err, &exit)
		t.Errorf("%v: %s%s", err, out, exit.Stderr)
	}
	left, err := filepath.Glob(filepath.Join(folder, "dormouse-keeper-*"))
	for _, at := range left {
		err = errors.Join(err, os.Chtimes(at, time.Time{}, time.Unix(1, 0)))
	}
	keep(t, a, "", append(run, filepath.Join(written, "0"), ref, "id")...).ended(t, 0)
	must(t, err)
	left, err = filepath.Glob(filepath.Join(folder, "*"))
	if tars, failed := os.ReadDir(filepath.Join(written, "0")); len(left) != 1 || len(tars) != 1 || errors.Join(err, failed) != nil {
		t.Errorf("left: %v, %v, %v, %v", left, tars, err, failed)
	}
}

// initRole is the role of a process that adopts all orphans, as the init of a task does. It
// starts boxes and ends them, and exits when it has no child any more.
const initRole = "init"

func manyBoxes(args []string) {
	need(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	well := 0
	for range 5 {
		var all sync.WaitGroup
		ends := make(chan error, 20)
		for n := range 20 {
			all.Go(func() { ends <- oneBox(args, n) })
		}
		all.Wait()
		for range 20 {
			switch err := <-ends; {
			case err == nil:
				well++
			case !errors.Is(err, errKilled):
				log.Fatal(err)
			}
		}
		for {
			if _, err := unix.Wait4(-1, nil, 0, nil); errors.Is(err, unix.ECHILD) {
				break
			} else if !errors.Is(err, unix.EINTR) {
				need(err)
			}
		}
	}
	_, _ = fmt.Fprintf(os.Stdout, "100 boxes, %d ended by themselves, nobody is left\n", well) // the test reads it
}

var errKilled = errors.New("it was killed")

// oneBox starts a box and ends it in one of several ways, which n chooses.
func oneBox(args []string, n int) error {
	deed, begin := "until:TERM", []string{keeperRole}
	switch {
	case n < 4:
		deed = "id"
	case n%2 == 0:
		begin = []string{parentRole, keeperRole} // the parent of the keeper is killed
	}
	args = append(slices.Clone(args), deed)
	args[len(args)-3] += "/" + strconv.Itoa(n) // the folder of --written
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: append(begin, args...), Stderr: os.Stderr}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if n < 4 {
		_, err := io.Copy(io.Discard, out)
		return errors.Join(err, cmd.Wait())
	}
	if moment := n / 2 % 5; moment == 4 {
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			return fmt.Errorf("it did not wait: %w", err)
		}
	} else {
		for !hasEnded(cmd.Process.Pid) { // moment 0 is at once, the others are while the keeper starts
			if there, _ := descendants(cmd.Process.Pid); len(there) >= moment { // what cannot be read has ended
				break
			}
			runtime.Gosched()
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		return err
	}
	if err := cmd.Wait(); cmd.ProcessState.Exited() {
		return fmt.Errorf("%q ended before it was killed: %w", args, err)
	}
	return errKilled
}

// parentRole starts a program and waits for it, as a runner does.
const parentRole = "parent"

// hasEnded reports whether a child has ended. It does not reap the child.
func hasEnded(pid int) bool {
	var end unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &end, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && end.Signo != 0
}

func TestAServerIsToldToEnd(t *testing.T) {
	a := as{1000, ""}
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	for _, more := range [][]string{nil, {"--written", a.folder(t)}} {
		cmd := a.command(keeperRole, append(append([]string{"run", "--store", a.folder(t)}, more...), ref, "until:TERM", "exit:3")...)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewReader(out)
		line, err := lines.ReadString('\n')
		must(t, err)
		equal(t, "output", "waits\n", line)
		must(t, cmd.Process.Signal(unix.SIGTERM))
		rest, err := io.ReadAll(lines)
		must(t, err)
		equal(t, "output", "until:TERM told\n", string(rest))
		_ = cmd.Wait() // its error says the exit code
		equal(t, "exit code", 3, cmd.ProcessState.ExitCode())
	}
}
