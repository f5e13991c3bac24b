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

// shimTime limits the time of a shim, which needs milliseconds.
const shimTime = 30 * time.Second

// order is the instruction for a shim. Values that may hold any byte but NUL are bytes
// instead of text.
type order struct {
	Path  []byte
	Args  [][]byte
	Env   [][]byte
	Dir   []byte
	Death int // the signal that the kernel sends when the runner dies, 0 for none

	Runner  int // pid of the runner
	User    uint32
	Policy  Policy
	Support Support
	Group   cgroup
	End     bool // run no program, but kill all processes of User
}

// verdict is what a shim reports if it cannot become the program.
type verdict struct {
	Step  string // "" for the exec itself
	Text  string
	Errno int // 0 if the error has no errno
}

// confined is the byte that a shim writes right before it becomes the program.
const confined = '.'

// Start starts a program in the sandbox, as cmd.Start would outside, and returns when
// the program is being executed. The program gets only its standard descriptors and
// cmd.Env; if that is nil it gets no variables. It leads a session, and so a process
// group, of its own. Its directory is cmd.Dir, or the workspace.
//
// cmd.Path must be absolute and cmd.ExtraFiles empty. Start overrides the fields of
// cmd.SysProcAttr about users and groups.
//
// The error is an [*Error] if the sandbox failed. On any error there is no process, and
// cmd cannot be used again.
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

// bound makes the cgroup of the program, if the system has delegated one to this runner.
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

// startWatch starts the watch of the memory, if there is a limit and no cgroup.
func (s *Sandbox) startWatch(pid int) {
	s.watched.Lock()
	defer s.watched.Unlock()
	if s.policy.Memory == 0 || s.group != "" {
		return
	}
	s.stop = make(chan struct{})
	go s.watch(pid, s.stop)
}

// stopWatch ends the watch. The caller holds watched.
func (s *Sandbox) stopWatch() {
	if s.stop != nil {
		close(s.stop)
		s.stop = nil
	}
}

// endGroup kills what is in the cgroup of the program, and removes the cgroup. The caller holds
// watched.
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

// End kills every process of the sandbox's own user or cgroup, if it has one, also those that
// have left the program's group. It removes what that user has in /dev/shm and /tmp, and then
// Temp. Call it when the program has ended, or in order to end it. The sandbox can be used
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

// shim turns the command into the shim for the order, starts it, and waits until it
// succeeds or fails. On success both results are nil. Otherwise the command has ended.
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
	// A session leader also leads a process group, and has no terminal into which it
	// could inject input.
	attr.Setsid, attr.Setpgid, attr.Pgid, attr.Credential = true, false, 0, nil
	cmd.SysProcAttr = &attr
	cmd.Path, cmd.Args, cmd.Dir, cmd.ExtraFiles = "/proc/self/exe", []string{shimName, shimName}, "/", []*os.File{in, w}
	// The shim lives for a moment: it needs no garbage collection and no parallelism.
	cmd.Env = []string{"GOGC=off", "GOMAXPROCS=1"}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	closeAll(w)
	v, err := readVerdict(r)
	if v != nil || err != nil {
		_ = cmd.Process.Kill() // this fails if the process has ended
		_ = cmd.Wait()         // the verdict already says what went wrong
	}
	return v, err
}

// readVerdict reads the report of a shim. It returns nil for both if the shim succeeded.
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

// cause returns the error in a verdict.
func (v *verdict) cause() error {
	if v.Errno == 0 {
		return errors.New(v.Text)
	}
	prefix := strings.TrimSuffix(v.Text, syscall.Errno(v.Errno).Error())
	return fmt.Errorf("%s%w", prefix, syscall.Errno(v.Errno))
}

// orderFile returns an anonymous file with the order, positioned at its start.
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

// closeAll closes files, of which some may be closed already.
func closeAll(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// texts is for JSON, which keeps bytes that are not UTF-8 only in a []byte.
func texts(from []string) [][]byte {
	to := make([][]byte, 0, len(from))
	for _, s := range from {
		to = append(to, []byte(s))
	}
	return to
}

// owned returns the owner of a file, and how many names it has.
func owned(info fs.FileInfo) (user uint32, names uint64) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 1
	}
	return st.Uid, uint64(st.Nlink)
}
