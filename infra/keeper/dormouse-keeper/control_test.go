package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

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
