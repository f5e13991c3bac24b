package sandbox

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// shimTime limits how long a shim may take, which normally needs milliseconds.
const shimTime = 30 * time.Second

// order tells a shim what to do. Values that need not be UTF-8 are []byte, because an order is
// encoded as JSON.
type order struct {
	Path  []byte
	Args  [][]byte
	Env   [][]byte
	Dir   []byte
	Death int // the signal to the program when the runner dies, 0 for none

	Runner  int // pid of the runner
	User    uint32
	Policy  Policy
	Support Support
	Group   cgroup
	End     bool // run no program, but kill all processes of User
}

// verdict is what a shim reports if it cannot become the program.
type verdict struct {
	Step  string // "" if the exec itself failed
	Text  string
	Errno int // 0 if the error has no errno
}

// confined is the byte that a shim writes directly before it becomes the program.
const confined = '.'

// Start starts a program in the sandbox as cmd.Start would do, and returns when the exec of the
// program has succeeded. The program gets only stdin, stdout and stderr, and the variables of
// cmd.Env, which are none if cmd.Env is nil. The program leads its own session and process group.
// The program's directory is cmd.Dir, or the first of Workspace, Temp and / that is set.
//
// cmd.Path must be absolute, and cmd.ExtraFiles empty. Start overrides Setsid, Setpgid, Pgid and
// Credential of cmd.SysProcAttr.
//
// The error is an [*Error] if the sandbox could not be made. After any error no process is left,
// and cmd cannot be used again.
func (s *Sandbox) Start(cmd *exec.Cmd) error {
	if cmd.Err != nil {
		return cmd.Err
	}
	if !filepath.IsAbs(cmd.Path) || len(cmd.ExtraFiles) > 0 {
		return &Error{Step: "command", Err: fmt.Errorf("%s must be an absolute path, without extra files", cmd.Path)}
	}
	if err := s.makeFolders(); err != nil {
		return err
	}
	path := cmd.Path
	o := s.order()
	o.Path, o.Args, o.Env = []byte(path), texts(cmd.Args), texts(cmd.Env)
	o.Dir = []byte(cmp.Or(cmd.Dir, s.policy.Workspace, s.policy.Temp, "/"))
	if cmd.SysProcAttr != nil {
		o.Death = int(cmd.SysProcAttr.Pdeathsig)
	}
	group, err := s.bound()
	if err != nil {
		return err
	}
	o.Group = group
	v, err := shim(cmd, o)
	if v == nil && err == nil {
		s.startWatch(cmd.Process.Pid)
		return nil
	}
	s.watched.Lock()
	defer s.watched.Unlock()
	err = errors.Join(err, s.endGroup())
	switch {
	case err != nil:
		return &Error{Step: "shim", Err: err}
	case v.Step == "":
		return &fs.PathError{Op: "exec", Path: path, Err: v.cause()}
	default:
		return &Error{Step: v.Step, Err: v.cause()}
	}
}

// bound makes the cgroup of the program, if the system lets the runner make cgroups and the policy
// has a limit.
func (s *Sandbox) bound() (cgroup, error) {
	s.watched.Lock()
	defer s.watched.Unlock()
	s.stopWatch()
	if err := s.endGroup(); err != nil {
		return "", err
	}
	s.exceeded.Store(false)
	if s.support.Cgroups != "" && (s.policy.Memory > 0 || s.policy.Processes > 0) {
		s.group, _ = newCgroup(s.support.Cgroups, s.policy) // if this fails, startWatch starts a watch
	}
	return s.group, nil
}

// startWatch runs watch in a goroutine, if the policy limits memory and there is no cgroup.
func (s *Sandbox) startWatch(pid int) {
	s.watched.Lock()
	defer s.watched.Unlock()
	if s.policy.Memory == 0 || s.group != "" {
		return
	}
	s.stop = make(chan struct{})
	go s.watch(pid, s.stop)
}

// stopWatch ends the watch of the memory. The caller must hold s.watched.
func (s *Sandbox) stopWatch() {
	if s.stop != nil {
		close(s.stop)
		s.stop = nil
	}
}

// endGroup kills the processes in the program's cgroup, and removes the cgroup. The caller must
// hold s.watched.
func (s *Sandbox) endGroup() error {
	if s.group == "" {
		return nil
	}
	if s.group.exceeded() {
		s.exceeded.Store(true)
	}
	if err := s.group.end(); err != nil {
		return &Error{Step: "end", Err: err}
	}
	s.group = ""
	return nil
}

// End kills every process of the sandbox's own user or cgroup, if it has one, even those that have
// left the program's process group. End deletes that user's files in /dev/shm, /tmp and /var/tmp,
// and Temp. Call End after the program has ended, or to end the program. The sandbox can be used
// again.
func (s *Sandbox) End() error {
	s.watched.Lock()
	s.stopWatch()
	err := s.endGroup()
	s.watched.Unlock()
	if err != nil {
		return err
	}
	if s.user != 0 {
		if err := s.endUser(); err != nil {
			return err
		}
	}
	return errors.Join(s.clear(), s.removeTemp())
}

// endUser kills all processes of the sandbox's own user.
func (s *Sandbox) endUser() error {
	o := s.order()
	o.End = true
	cmd := &exec.Cmd{}
	v, err := shim(cmd, o)
	if v != nil {
		err = v.cause()
	}
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return &Error{Step: "end", Err: err}
	}
	return nil
}

func (s *Sandbox) order() order {
	return order{Runner: os.Getpid(), User: s.user, Policy: s.policy, Support: s.support}
}

// shim makes cmd the shim for an order, starts it, and waits until the shim has become the program
// or failed. On success both results are nil; after a failure the process has ended.
func shim(cmd *exec.Cmd, o order) (*verdict, error) {
	in, err := orderFile(o)
	if err != nil {
		return nil, err
	}
	defer closeAll(in)
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer closeAll(r, w)
	attr := syscall.SysProcAttr{Pdeathsig: syscall.Signal(o.Death)}
	if cmd.SysProcAttr != nil {
		attr = *cmd.SysProcAttr
	}
	// A session leader also leads a process group, and has no terminal, into which a program could
	// inject input.
	attr.Setsid, attr.Setpgid, attr.Pgid, attr.Credential = true, false, 0, nil
	cmd.SysProcAttr = &attr
	cmd.Path, cmd.Args, cmd.Dir, cmd.ExtraFiles = "/proc/self/exe", []string{shimName, shimName}, "/", []*os.File{in, w}
	// The shim lives only for a moment, so it needs no garbage collection and no parallelism.
	cmd.Env = []string{"GOGC=off", "GOMAXPROCS=1"}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	closeAll(w)
	v, err := readVerdict(r)
	if v != nil || err != nil {
		_ = cmd.Process.Kill() // fails if the process has ended
		_ = cmd.Wait()         // the verdict already says what failed
	}
	return v, err
}

// readVerdict reads the report of a shim. Both results are nil if the shim has become the program.
func readVerdict(r *os.File) (*verdict, error) {
	if err := r.SetReadDeadline(time.Now().Add(shimTime)); err != nil {
		return nil, err
	}
	said, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if err != nil {
		return nil, fmt.Errorf("wait for the shim: %w", err)
	}
	if len(said) > 0 && said[0] == confined {
		said = said[1:]
		if len(said) == 0 {
			return nil, nil
		}
	}
	v := &verdict{}
	if err := json.Unmarshal(said, v); err != nil {
		return nil, errors.New("it ended without a word: call sandbox.Enter first in main")
	}
	return v, nil
}

func (v *verdict) cause() error {
	if v.Errno == 0 {
		return errors.New(v.Text)
	}
	prefix := strings.TrimSuffix(v.Text, syscall.Errno(v.Errno).Error())
	return fmt.Errorf("%s%w", prefix, syscall.Errno(v.Errno))
}

// orderFile returns an anonymous file that contains the order, positioned at its start.
func orderFile(o order) (*os.File, error) {
	raw, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("order", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "order")
	if _, err = f.Write(raw); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		closeAll(f)
		return nil, err
	}
	return f, nil
}

// closeAll closes files, some of which may be closed already.
func closeAll(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// texts returns the strings as []byte, because JSON would change a string that is not UTF-8.
func texts(from []string) [][]byte {
	to := make([][]byte, 0, len(from))
	for _, s := range from {
		to = append(to, []byte(s))
	}
	return to
}

// owned returns the owner of a file, and how many hard links it has.
func owned(info fs.FileInfo) (user uint32, names uint64) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 1
	}
	return st.Uid, uint64(st.Nlink)
}
