package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

func TestWhatAMemoryDependsOn(t *testing.T) {
	a := as{1000, ""}
	host := served(t)
	ref := pinned(t, push(t, host, v1.Config{Entrypoint: []string{"/server"}}, withServer(t)))
	other := pinned(t, push(t, host, v1.Config{Entrypoint: []string{"/server"}}, withServer(t), layer(t, entry("more", '0', 0o644, "text"))))
	store, folder := a.folder(t), a.folder(t)
	t.Setenv("KEEPER_A", "1")
	base := []string{"--store", store, "--env", "KEEPER_A", "--folder", folder + ":/mnt:ro", "--host", "api.test", "--stable", "npm:1"}
	fit := func(args ...string) map[string]string {
		t.Helper()
		return controlled(t, a, args...).fit
	}
	with := func(more ...string) []string { return append(slices.Clone(base), more...) }
	want := fit(with(ref, "serve")...)
	for _, name := range []string{"build", "arch", "cpu", "page", "image", "spec"} {
		if want[name] == "" || len(want) != 6 {
			t.Errorf("%v", want)
		}
	}
	if !strings.HasPrefix(want["build"], "gvisor v0.0.0-2") || want["image"] != ref[strings.Index(ref, "sha256:"):] || strings.Contains(fmt.Sprint(want), "KEEPER_A") {
		t.Errorf("%v", want)
	}
	same := with(ref, "serve")
	same[1], same[5] = a.folder(t), a.folder(t)+":/mnt:ro" // another store, and the folder elsewhere
	if got := fit(same...); !maps.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	for name, args := range map[string][]string{
		"arguments": with(ref, "serve", "id"), "host": with("--host", "b.test", ref, "serve"), "stable": with("--stable", "pip:1", ref, "serve"), "memory": with("--memory", "300", ref, "serve"),
		"tmpfs": with("--tmpfs", "/x", ref, "serve"), "user": with("--user", "node", ref, "serve"), "read only": with("--read-only", ref, "serve"), "pids": with("--pids", "9", ref, "serve"),
		"written": with("--written", a.folder(t), ref, "serve"), "directory": with("--workdir", "/tmp", ref, "serve"), "fixed": append(slices.Replace(slices.Clone(base), 5, 6, folder+":/mnt:fixed"), ref, "serve"),
		"image": with(other, "serve"),
	} {
		if got := fit(args...); got["spec"] == want["spec"] || got["build"] != want["build"] || (got["image"] != want["image"]) != (name == "image") {
			t.Errorf("%s: %v", name, got)
		}
	}
	t.Setenv("KEEPER_A", "2")
	if got := fit(with(ref, "serve")...); got["spec"] == want["spec"] {
		t.Errorf("a variable: %v", got)
	}
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	program := filepath.Join(a.folder(t), "keeper")
	_, id, _ := strings.Cut(want["build"], " go:")
	if len(id) < 40 || !bytes.Contains(self, []byte(id)) {
		t.Fatalf("the program does not have the digest of %q", want["build"])
	}
	must(t, os.WriteFile(program, bytes.ReplaceAll(self, []byte(id), []byte("x"+id[1:])), 0o755))
	cmd := a.command(keeperRole, append([]string{"run", "--control", "3"}, with(ref, "serve")...)...)
	cmd.Path = program
	if got := sleeping(t, cmd).ready(t).fit; got["build"] == want["build"] {
		t.Errorf("another build: %v", got)
	}
}

func TestAnImageThatDoesNotThaw(t *testing.T) {
	a := as{1000, ""}
	host, store := served(t), a.folder(t)
	ref := pinned(t, push(t, host, v1.Config{Entrypoint: []string{"/server"}}, withServer(t)))
	other := pinned(t, push(t, host, v1.Config{Entrypoint: []string{"/server"}}, withServer(t), layer(t, entry("more", '0', 0o644, "text"))))
	image := controlled(t, a, "--store", store, ref, "serve").starts(t).freezes(t)
	if len(image) < 100_000 {
		t.Fatalf("%d bytes", len(image))
	}
	s := controlled(t, a, "--store", store, ref, "serve")
	refused := func(what string, image []byte) {
		t.Helper()
		if unfit := s.thaws(t, image); unfit == "" || strings.Contains(unfit, "\n") {
			t.Fatalf("%s: %q", what, unfit)
		}
	}
	draw := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same places in each run
	for range 100 {
		at := draw.IntN(len(image))
		damaged := slices.Clone(image)
		damaged[at] ^= 1 << draw.IntN(8)
		refused(fmt.Sprint("byte ", at), damaged)
	}
	for _, size := range []int{0, 1, 8, 12, 100, len(image) / 2, len(image) - 4, len(image) - 1} {
		refused(fmt.Sprint(size, " bytes"), image[:size])
	}
	refused("more", append(slices.Clone(image), 0))
	summed := func(change func([]byte)) []byte { // as if it were whole
		text := slices.Clone(image[:len(image)-4])
		change(text)
		return binary.BigEndian.AppendUint32(text, crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)))
	}
	state := 8 + int(binary.BigEndian.Uint64(image)) + 8
	refused("a state that cannot be read", summed(func(b []byte) { clear(b[state+2000 : state+6000]) }))
	refused("a state without its header", summed(func(b []byte) { clear(b[state : state+100]) }))
	refused("addresses that no box has", summed(func(b []byte) { copy(b[8:], bytes.Repeat([]byte("x"), state-16)) }))
	if said := s.starts(t).does(t, "count"); !strings.HasPrefix(said, "1 as ") {
		t.Error(said)
	}
	s = controlled(t, a, "--store", store, other, "serve")
	refused("of another image", image)
	s.starts(t)
	if s = controlled(t, a, "--store", store, ref, "serve"); s.thaws(t, image) != "" {
		t.Error("the whole image does not thaw")
	}
}

// After a thaw a connection that was open fails once, and new ones work. An address that the
// program remembers leads to its name, and only listed hosts are reached.
func TestConnectionsAfterAThaw(t *testing.T) {
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}, User: "node"}, withServer(t))
	everywhere(t, func(t *testing.T, a as) {
		store := a.folder(t)
		keep(t, a, "", "pull", "--store", store, ref).ended(t, 0)
		start := func() *sleeper {
			return sleeping(t, a.networked(t, keeperRole, "run", "--control", "3", "--store", store, "--host", "api.test:8080", "--host", "*.wild.test:8080", ref, "serve")).ready(t)
		}
		s := start().starts(t)
		must := func(deed, want string) {
			t.Helper()
			equal(t, deed, want, s.does(t, deed))
		}
		for _, name := range []string{"idle", "asked", "full"} {
			must("hold:"+name+"=api.test:8080", "held")
		}
		must("tell:idle=abc", "told")
		must("hear:idle", "abc")
		address := s.does(t, "address:a.wild.test")
		must("tell:asked=abc", "told") // the answer may be on its way
		must("push:full", "begun")
		for range 2 {
			image := s.freezes(t)
			s = start().goesOn(t, image)
			for _, deed := range []string{"hear:idle", "tell:idle=abc", "pushed:full"} {
				if said := s.does(t, deed); !strings.HasPrefix(said, "error ") {
					t.Errorf("%s on a connection from before: %s", deed, said)
				}
			}
			// The answer may have come before the freeze.
			if said := s.does(t, "hear:asked"); !strings.HasPrefix(said, "error ") && said != "abc" {
				t.Errorf("a connection that was asked: %s", said)
			}
			if said := s.does(t, "hear:asked"); !strings.HasPrefix(said, "error ") {
				t.Errorf("a connection that was asked: %s", said)
			}
			for _, name := range []string{"idle", "asked", "full"} {
				must("hold:"+name+"=api.test:8080", "held")
				must("tell:"+name+"=def", "told")
				must("hear:"+name, "def")
			}
			must("dial:"+address+":8080", "1000000 bytes came back")
			must("dial:api.test:8080", "1000000 bytes came back")
			has(t, "evil.test", "no such host", s.does(t, "dial:evil.test:8080"))
			must("push:full", "begun")
		}
	})
}

// Files of this machine: an open one is found again by its path, also where the folder is
// elsewhere; without it nothing thaws. Processes go on together.
func TestFilesAndProcessesAfterAThaw(t *testing.T) {
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	for _, a := range systems() {
		for _, mode := range []string{":ro", ":fixed", ""} {
			t.Run(fmt.Sprint(a, " ", mode), func(t *testing.T) {
				store, folder := a.folder(t), a.folder(t)
				for name, text := range map[string]string{"open": "one two thr", "closed": "closed"} {
					must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
				}
				args := func(dir string) []string {
					return []string{"--store", store, "--folder", dir + ":/mnt" + mode, ref, "serve"}
				}
				s := controlled(t, a, args(folder)...).starts(t)
				deeds := []string{"open:f=/mnt/open", "line:f", "read:/mnt/closed", "fork:3", "temporary:/tmp/x", "temporary:/dev/shm/x"}
				if mode == "" {
					deeds = append(deeds, "append:/mnt/log=1", "temporary:/mnt/x")
				}
				for _, deed := range deeds {
					if said := s.does(t, deed); strings.Contains(said, "error ") {
						t.Errorf("%s: %s", deed, said)
					}
				}
				processes := s.does(t, "processes")
				image := s.freezes(t)
				without := func(name string) []string { // the arguments with a copy of the folder
					dir := a.folder(t)
					if out, err := exec.CommandContext(t.Context(), "cp", "-a", folder+"/.", dir).CombinedOutput(); err != nil {
						t.Fatalf("%v: %s", err, out)
					}
					must(t, os.Remove(filepath.Join(dir, name)))
					return args(dir)
				}
				s = controlled(t, a, without("open")...)
				if unfit := s.thaws(t, image); unfit == "" {
					t.Error("it went on without a file that it had open")
				}
				s.starts(t)

				there := without("closed")
				s = controlled(t, a, there...)
				s.goesOn(t, image)
				after := map[string]string{"line:f": "two ", "processes": processes, "whole:/tmp/x": "temporary", "whole:/dev/shm/x": "temporary"}
				if mode == "" {
					after["append:/mnt/log=2"], after["read:/mnt/log"], after["whole:/mnt/x"] = "done", "12", "temporary"
				}
				for _, deed := range slices.Sorted(maps.Keys(after)) {
					equal(t, deed, after[deed], s.does(t, deed))
				}
			})
		}
	}
}

// A freeze may come at any byte of a line to the server, and of its answer. Each byte that the
// server has not read is in its memory or still in the pipe. So the line is answered once, whole.
func TestALineIsAnsweredOnceWhereverAFreezeCutsIt(t *testing.T) {
	a := as{1000, ""}
	args := []string{"--store", a.folder(t), push(t, served(t), v1.Config{Entrypoint: []string{"/server"}}, withServer(t)), "serve"}
	draw := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // the same line in each run
	text := make([]byte, 1<<20)
	for n := range text {
		text[n] = "0123456789abcdef"[draw.IntN(16)]
	}
	const busy = "timer:200ms" // meanwhile the server reads nothing
	deeds := busy + "\ncount:" + string(text) + "\n"
	cuts := []int{0, 1, 4095, 4096, 4097, 1<<16 - 1, 1 << 16, 1<<16 + 1, len(deeds) - 1, len(deeds)}
	for range 9 {
		cuts = append(cuts, draw.IntN(len(deeds)))
	}
	s := controlled(t, a, args...).starts(t)
	for n, cut := range cuts {
		said := make(chan []byte)
		go func() {
			part, _ := io.ReadAll(s.out) // until the server is frozen; what is missing is seen below
			said <- part
		}()
		_, err := io.WriteString(s.in, deeds[:cut])
		must(t, err)
		image := s.freezes(t)
		must(t, s.in.Close())
		rest, err := io.ReadAll(s.sent)
		must(t, err)
		got := <-said

		s = controlled(t, a, args...).goesOn(t, image)
		go func() { _, _ = s.in.WriteString(string(rest) + deeds[cut:]) }() // likewise
		for bytes.Count(got, []byte("\n")) < 2 {
			part, err := s.out.ReadBytes('\n')
			must(t, err)
			got = append(got, part...)
		}
		if want := fmt.Sprintf("%s fired\ncount:%s %d as ", busy, text, n+1); !strings.HasPrefix(string(got), want) {
			t.Errorf("cut at byte %d: %d bytes came, which end with %q", cut, len(got), got[max(0, len(got)-40):])
		}
	}
}

// laterRole runs a command on a machine that is up for more seconds: SECONDS COMMAND….
const laterRole = "later"

func later(seconds string, command []string) {
	runtime.LockOSThread() // its next child is there
	need(unix.Unshare(unix.CLONE_NEWTIME))
	need(os.WriteFile(fmt.Sprintf("/proc/%d/timens_offsets", unix.Gettid()), []byte("monotonic "+seconds+" 0\nboottime "+seconds+" 0\n"), 0))
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: command, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, ExtraFiles: []*os.File{os.NewFile(3, "control")}}
	need(cmd.Run())
}

// A machine that is up for a day longer, or since a moment, has other clocks. Programs notice
// the time that has passed, and no more.
func TestClocksAfterAThaw(t *testing.T) {
	a := as{1000, ""}
	args := []string{"run", "--control", "3", "--store", a.folder(t), push(t, served(t), v1.Config{Entrypoint: []string{"/server"}}, withServer(t)), "serve"}
	var up unix.Sysinfo_t
	must(t, unix.Sysinfo(&up))
	s := sleeping(t, a.command(keeperRole, args...)).ready(t).starts(t)
	for _, seconds := range []int64{86_400, -up.Uptime + 1, 0} {
		equal(t, "timer", "fired", s.does(t, "timer:1ms"))
		image := s.freezes(t)
		cmd := a.command(keeperRole, args...)
		cmd.Args = append([]string{laterRole, strconv.FormatInt(seconds, 10)}, cmd.Args...)
		cmd.SysProcAttr = own(unix.CAP_SYS_ADMIN, unix.CAP_SYS_TIME)
		s = sleeping(t, cmd).ready(t).goesOn(t, image)
		equal(t, "timer", "fired", s.does(t, "timer:1ms"))
	}
}

// A keeper that is killed while it freezes or thaws takes all of its processes along, and
// leaves no file that the next one does not remove.
func TestAKeeperKilledAsItFreezesOrThaws(t *testing.T) {
	must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	t.Cleanup(func() {
		check(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0))
	})
	a := as{1000, ""}
	temporary := a.folder(t)
	args := []string{"--store", a.folder(t), "--written", a.folder(t), push(t, served(t), v1.Config{Entrypoint: []string{"/server"}}, withServer(t)), "serve"}
	image := controlled(t, a, args...).starts(t).freezes(t)
	t.Setenv("TMPDIR", temporary)
	killed := func(what string, s *sleeper) {
		t.Helper()
		must(t, s.cmd.Process.Kill())
		_ = s.cmd.Wait() // by the signal
		for _, pid := range children(t, os.Getpid()) {
			if _, err := unix.Wait4(pid, nil, 0, nil); err != nil && !errors.Is(err, unix.ECHILD) { // it ends
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	for _, moment := range []int{0, 1, 1000, len(image) / 2, len(image)} { // bytes of the image that came
		s := controlled(t, a, args...).starts(t)
		s.orders(t, "freeze")
		if moment > 0 {
			s.hears(t)
			if _, err := (&chunkReader{from: s.control.in}).Read(make([]byte, moment)); err != nil {
				t.Fatal(err)
			}
		}
		killed(fmt.Sprint("freeze at ", moment), s)
	}
	for _, moment := range []int{0, 1, len(image) / 2, len(image)} { // bytes that it got
		s := controlled(t, a, args...)
		s.orders(t, "thaw")
		if _, err := (chunkWriter{s.conn}).Write(image[:moment]); err != nil {
			t.Fatal(err)
		}
		if moment == len(image) {
			if _, err := s.conn.Write(make([]byte, 4)); err != nil {
				t.Fatal(err)
			}
		}
		killed(fmt.Sprint("thaw at ", moment), s)
	}
	left, err := filepath.Glob(filepath.Join(temporary, "*")) // a socket, if it was killed as it made one
	for _, at := range left {
		err = errors.Join(err, os.Chtimes(at, time.Time{}, time.Unix(1, 0)))
	}
	controlled(t, a, args...).starts(t).freezes(t)
	if left, failed := filepath.Glob(filepath.Join(temporary, "*")); len(left) > 0 || errors.Join(err, failed) != nil {
		t.Errorf("left: %v, %v, %v", left, err, failed)
	}
}

// sleeper is a keeper with a control, to which the test is the runner.
type sleeper struct {
	*control
	cmd  *exec.Cmd
	in   *os.File // to the server
	sent *os.File // the other end of in, which the keeper has too
	out  *bufio.Reader
	errs bytes.Buffer
	fit  map[string]string
}

// heard is a message of a keeper; see control for its members.
type heard struct {
	Fit                  map[string]string
	Begun, Image, Frozen bool
	Unfit, Failed        string
}

// controlled starts a keeper that waits for the order to start its server or to thaw it.
func controlled(t testing.TB, a as, args ...string) *sleeper {
	t.Helper()
	return sleeping(t, a.command(keeperRole, append([]string{"run", "--control", "3"}, args...)...)).ready(t)
}

// sleeping starts a keeper that has a control.
func sleeping(t testing.TB, cmd *exec.Cmd) *sleeper {
	t.Helper()
	s := &sleeper{cmd: cmd}
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	theirs, ours := os.NewFile(uintptr(p[0]), "control"), os.NewFile(uintptr(p[1]), "control")
	conn, err := net.FileConn(ours)
	must(t, err)
	s.control = &control{conn, bufio.NewReader(conn)}
	s.cmd.ExtraFiles, s.cmd.Stderr = []*os.File{theirs}, &s.errs
	s.sent, s.in, err = os.Pipe()
	must(t, err)
	out, stdout, err := os.Pipe()
	must(t, err)
	s.cmd.Stdin, s.cmd.Stdout, s.out = s.sent, stdout, bufio.NewReader(out)
	must(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // this fails if the process has ended
		_ = s.cmd.Wait()         // the test may have waited for it
		for _, c := range []io.Closer{conn, s.in, s.sent, out} {
			_ = c.Close() // the test may have closed it
		}
	})
	for _, f := range []*os.File{theirs, ours, stdout} {
		must(t, f.Close())
	}
	return s
}

// ready waits for the first message of the keeper.
func (s *sleeper) ready(t testing.TB) *sleeper {
	t.Helper()
	s.fit = s.hears(t).Fit
	return s
}

func (s *sleeper) hears(t testing.TB) (h heard) {
	t.Helper()
	err := s.conn.SetReadDeadline(time.Now().Add(30 * time.Second)) // rather than hang
	must(t, err)
	line, err := s.control.in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &h)
	}
	if err != nil {
		_ = s.cmd.Process.Signal(unix.SIGQUIT) // a keeper that hangs says where
		_ = s.cmd.Wait()                       // after this all of stderr was read
		t.Fatalf("%q, %v: %v %s", line, err, s.cmd.ProcessState, s.errs.String())
	}
	return h
}

func (s *sleeper) orders(t testing.TB, what string) {
	t.Helper()
	must(t, s.tell(what, true))
}

// starts has the server begin.
func (s *sleeper) starts(t testing.TB) *sleeper {
	t.Helper()
	s.orders(t, "start")
	if h := s.hears(t); !h.Begun {
		t.Fatalf("%+v", h)
	}
	return s
}

// thaws has the server go on from an image, and returns why it does not.
func (s *sleeper) thaws(t testing.TB, image []byte) (unfit string) {
	t.Helper()
	s.orders(t, "thaw")
	if _, err := (chunkWriter{s.conn}).Write(image); err != nil {
		t.Fatal(err)
	}
	if _, err := s.conn.Write(make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	h := s.hears(t)
	if !h.Begun && h.Unfit == "" {
		t.Fatalf("%+v", h)
	}
	return h.Unfit
}

// goesOn has the server go on from an image.
func (s *sleeper) goesOn(t testing.TB, image []byte) *sleeper {
	t.Helper()
	if unfit := s.thaws(t, image); unfit != "" {
		t.Fatal(unfit)
	}
	return s
}

// does sends the server the name of a deed, and returns what the server answers.
func (s *sleeper) does(t testing.TB, deed string) string {
	t.Helper()
	if _, err := fmt.Fprintln(s.in, deed); err != nil {
		t.Fatal(err)
	}
	line, err := s.out.ReadString('\n')
	said, ok := strings.CutPrefix(line, deed+" ")
	if err != nil || !ok {
		_ = s.cmd.Process.Kill() // this fails if the process has ended
		_ = s.cmd.Wait()         // after this all of stderr was read
		t.Fatalf("%s: %q, %v: %v %s", deed, line, err, s.cmd.ProcessState, s.errs.String())
	}
	return strings.TrimSuffix(said, "\n")
}

// freezes freezes the server, and returns the image.
func (s *sleeper) freezes(t testing.TB) []byte {
	t.Helper()
	s.orders(t, "freeze")
	if h := s.hears(t); !h.Image {
		t.Fatalf("%+v", h)
	}
	if left := children(t, s.cmd.Process.Pid); len(left) > 0 && s.cmd.Args[0] == taskRole {
		t.Errorf("the image begins, and there are %v", left)
	}
	image, err := io.ReadAll(&chunkReader{from: s.control.in})
	must(t, err)
	if h := s.hears(t); !h.Frozen {
		t.Errorf("%+v", h)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, s.errs.String())
	}
	return image
}

// A server is frozen and thawed several times. Each time it goes on with its memory, its
// processes and its files. Files that --written keeps are there without the memory too.
func TestAServerGoesOnFromItsMemory(t *testing.T) {
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	times := 5
	for _, a := range systems() {
		for _, kept := range []bool{false, true} {
			t.Run(fmt.Sprint(a, " written ", kept), func(t *testing.T) {
				args := []string{"--store", a.folder(t), "--memory", "400"}
				if kept {
					args = append(args, "--written", a.folder(t))
				}
				args = append(args, ref, "serve", "exit:3")
				s := controlled(t, a, args...).starts(t)
				pid := s.does(t, "count")[len("1 as "):]
				for n := range times {
					equal(t, "write", "done", s.does(t, fmt.Sprintf("write:/%d=%d", n, n)))
					image := s.freezes(t)
					next := controlled(t, a, args...)
					if !maps.Equal(next.fit, s.fit) {
						t.Errorf("%v, %v", next.fit, s.fit)
					}
					s = next.goesOn(t, image)
					equal(t, "count", fmt.Sprint(n+2, " as ", pid), s.does(t, "count"))
					equal(t, "read", fmt.Sprint(n), s.does(t, fmt.Sprintf("read:/%d", n)))
				}
				s.freezes(t)
				s = controlled(t, a, args...).starts(t)
				if said, last := s.does(t, fmt.Sprintf("read:/%d", times-1)), fmt.Sprint(times-1); said != last && kept {
					t.Error(said)
				}
				must(t, s.in.Close())
				if _ = s.cmd.Wait(); s.cmd.ProcessState.ExitCode() != 3 {
					t.Errorf("%v: %s", s.cmd.ProcessState, s.errs.String())
				}
			})
		}
		times = 2
	}
}
