// Package box runs a program from an image in a virtual kernel, which is gVisor used as a library.
// The program, its kernel and their helper process are a box. A box needs no privileges: no user
// namespace, no capability, no cgroup.
//
//	keeper ── sentry ── its stubs      the program runs in the stubs, and the sentry answers its
//	   │                               system calls: it is the kernel of the box
//	   └───── a server of files        serves all folders of this machine that are in the box
//
// The sentry gets open file descriptors and no paths: the image, stdin, stdout and stderr, a
// listening socket, and one end of a socket pair whose other end is the network. Its seccomp
// filter does not allow open, socket, connect or execve. Before it begins, it gives up rights; see
// [sealRole].
//
// [Box.Freeze] ends a box and returns its memory. With [Box.Thaw] another box goes on from that
// memory, in another process or on another machine, if it has the same [Spec.Fit].
package box

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/keeper/image"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/control/server"
	"gvisor.dev/gvisor/pkg/hostos"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/donation"
	gflag "gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/fsgofer"
)

// The roles in which the keeper executes itself again, as the first argument of the new process.
const (
	sentryRole = "runsc-sandbox"
	filesRole  = "keeper-files"
)

// Role does the work of a process that a Box has started, and then exits. In any other process,
// Role returns at once. Role must be the first call in main.
func Role() {
	silence()
	switch os.Args[0] {
	case sealRole:
		fail(seal(os.Args))
	case sentryRole:
		debug.SetGCPercent(300) // a sentry allocates mostly while it starts: this costs about 5 MB and saves 3 to 10 % of the time
		cli.Run(nil, map[util.SubCommand]string{new(sentrycmd.Boot): ""}, nil)
		os.Exit(0)
	case filesRole:
		if err := errors.Join(Hide(), serveFiles(os.Args[1])); err != nil {
			fail(err)
		}
		os.Exit(0)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// silence drops the log output of gVisor, which would go to stderr.
func silence() { log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}}) }

// Spec describes what a box runs. The caller closes the files in it.
type Spec struct {
	Image    *os.File // an EROFS file system
	Args     []string // not empty; Args[0] is looked up in the PATH of Env
	Env      []string
	Dir      string // "" for /
	UID, GID uint32
	Groups   []uint32
	ReadOnly bool     // the program cannot write to its root; otherwise what it writes there stays in memory
	Tmpfs    []string // paths in the box at which a file system in memory is mounted
	Folders  []Folder // folders of this machine
	MemoryMB int      // limit for the memory of all processes and written files together; 0 means no limit
	CPUs     int      // number of CPUs that the program sees; 0 means all
	Pids     int      // limit of processes for each user in the box; 0 means no limit
	Stdio    [3]*os.File
	Link     *boot.CreateLinksAndRoutesArgs // the network; nil means loopback only
	// Written is the path of a file for what the program writes to its root, "" for none. The root
	// begins with the contents of that file. After the program has ended, the box replaces the
	// file by a rename. The image must contain the program [Init].
	Written string
}

// Folder is a folder or a file of this machine that is mounted in the box.
type Folder struct {
	Host, Path string // its absolute path on this machine, without links, and its path in the box
	ReadOnly   bool
	// Fixed says that nothing in the folder changes while the box runs; ReadOnly must be set too.
	// The sentry caches what it has read in a Fixed folder.
	Fixed bool
}

// Box is a running box. The caller of Start must call Wait.
type Box struct {
	cmd    *exec.Cmd    // the process of the sentry
	files  []*exec.Cmd  // one process, which serves all folders; empty without folders
	said   *head        // stderr of these processes
	wait   *urpc.Client // the connection to the sentry that Wait uses
	spec   Spec
	door   int                    // descriptor of the sentry's listening socket, whose file was removed
	reason atomic.Pointer[string] // the argument of End, nil if End was not called
	gone   sync.Once              // makes Close work once
	mu     sync.Mutex             // guards the fields below
	does   *urpc.Client           // the connection for all other calls to the sentry, one at a time
	over   bool                   // the program has ended, or was frozen
}

const id = "box"

// nobody is the user id of the sentry if root has started it.
const nobody = 65534

// programPID is the program's pid in the box, if [Init] starts the program.
const programPID = 2

// Start starts a box, and returns when its program runs. After an error no process of the box is
// left.
func Start(s Spec) (*Box, error) {
	b, err := Prepare(s)
	if err != nil {
		return nil, err
	}
	return b, b.Begin()
}

// Prepare starts the processes of a box, but not its program. The caller must then call Begin,
// Thaw or Close. After an error no process is left.
func Prepare(s Spec) (_ *Box, err error) {
	b := &Box{said: &head{}, spec: s, door: -1}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	spec, err := specFile(s)
	if err != nil {
		return nil, err
	}
	ready, booted, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, spec.Close())
	}
	defer func() { _ = ready.Close() }()
	var d donation.Agency
	defer d.Close()
	d.DonateAndClose("spec-fd", spec)

	d.DonateAndClose("start-sync-fd", booted)
	d.Donate("io-fds", s.Image)
	confs := []string{"erofs:memory"}
	if s.ReadOnly {
		confs[0] = "erofs:none"
	}
	ends, err := b.serve(s.Folders)
	if err != nil {
		return nil, err
	}
	for _, end := range ends {
		d.DonateAndClose("io-fds", end)
		confs = append(confs, "lisafs:none")
	}
	listening, err := b.control()
	if err != nil {
		return nil, err
	}
	d.DonateAndClose("controller-fd", listening)
	d.Donate("stdio-fds", s.Stdio[:]...)
	if err := donateWritten(s.Written, &d); err != nil {
		return nil, err
	}
	cmd, err := sentry(s, confs, &d)
	if err != nil {
		return nil, err
	}
	cmd.Stderr = b.said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	b.cmd = cmd
	d.Close()
	if n, err := ready.Read(make([]byte, 1)); n != 1 {
		return nil, b.failed("it did not begin", err)
	}
	return b, nil
}

// Begin starts the program of a box that Prepare has returned. After an error no process of the
// box is left.
func (b *Box) Begin() error {
	if err := b.connect(b.spec.Link); err != nil {
		return b.failed("its network", err)
	}
	root := id
	if err := b.call(boot.ContMgrRootContainerStart, &root, nil); err != nil {
		return b.failed("its program", err)
	}
	if err := b.born(); err != nil {
		return b.failed("its program", err)
	}
	return nil
}

func (b *Box) connect(link *boot.CreateLinksAndRoutesArgs) error {
	if link == nil {
		link = &boot.CreateLinksAndRoutesArgs{LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink}}
	}
	return b.call(boot.ContMgrSetNetworkArgs, link, nil)
}

// born waits until [Init], if the box uses it, has started the program; before that Wait has
// nothing to wait for.
func (b *Box) born() error {
	for until := time.Now().Add(10 * time.Second); b.spec.Written != ""; time.Sleep(time.Millisecond) {
		err := b.Signal(unix.SIGCONT)
		if err == nil {
			break
		}
		if time.Now().After(until) {
			return err
		}
	}
	return nil
}

// donateWritten passes the file [Spec].Written to the sentry, if the file exists.
func donateWritten(file string, d *donation.Agency) error {
	if file == "" {
		return nil
	}
	written, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		d.DonateAndClose("rootfs-upper-tar-fd", written)
	}
	return err
}

// control makes the listening socket of the sentry, connects to it at once, and removes the
// socket's file, so that no other process can connect.
func (b *Box) control() (*os.File, error) {
	sweep()
	dir, err := os.MkdirTemp("", image.Temporary)
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	at := filepath.Join(dir, "s")
	fd, err := server.CreateSocket(at)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "control")
	if err := unix.Listen(fd, 2); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if b.door, err = unix.Open(at, unix.O_PATH|unix.O_CLOEXEC, 0); err == nil {
		err = b.enter()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// enter connects to the sentry, also after a thaw, which ends all connections.
func (b *Box) enter() error {
	for _, c := range []**urpc.Client{&b.wait, &b.does} {
		if *c != nil {
			_ = (*c).Close() // the connection has ended
		}
		var err error
		if *c, err = client.ConnectTo(fmt.Sprintf("/proc/self/fd/%d", b.door)); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes temporary files of keepers that were killed: those older than a minute.
func sweep() {
	all, _ := filepath.Glob(filepath.Join(os.TempDir(), image.Temporary+"*")) // the pattern is well formed
	for _, at := range all {
		if info, err := os.Lstat(at); err == nil && time.Since(info.ModTime()) > time.Minute {
			_ = os.RemoveAll(at) // an error is ignored, because the folder may belong to another user
		}
	}
}

// sentry returns the command that starts the sentry.
func sentry(s Spec, confs []string, d *donation.Agency) (*exec.Cmd, error) {
	conf, err := settings()
	if err != nil {
		return nil, err
	}
	host, err := hostos.TotalSystemMemory()
	if err != nil {
		return nil, err
	}
	memory := host
	if s.MemoryMB > 0 {
		memory = min(host, uint64(s.MemoryMB)<<20)
	}
	cmd := program()
	cmd.Args = append(conf.ToFlags(), "boot", "--bundle=/", "--attached", "--gofer-mount-confs="+strings.Join(confs, ","),
		"--total-host-memory="+strconv.FormatUint(host, 10), "--total-memory="+strconv.FormatUint(memory, 10))
	if s.CPUs > 0 {
		cmd.Args = append(cmd.Args, "--cpu-num="+strconv.Itoa(s.CPUs))
	}
	d.Transfer(cmd, 3)
	cmd.Args = sealed(sentryRole, nil, append(cmd.Args, id))
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return cmd, nil
}

// settings returns the configuration of gVisor. It turns directfs off, so that the sentry's
// seccomp filter need not allow system calls that open files.
func settings() (*config.Config, error) {
	set := gflag.NewFlagSet("runsc", gflag.ContinueOnError)
	config.RegisterFlags(set)
	for name, value := range flags() {
		if err := set.Set(name, value); err != nil {
			return nil, err
		}
	}
	return config.NewFromFlags(set)
}

// flags returns gVisor's flags. allow-live-tcp-migration is off, so a freeze ends all TCP
// connections: the network of the next box does not know them.
func flags() map[string]string {
	return map[string]string{"root": "/", "platform": "systrap", "network": "none", "ignore-cgroups": "true", "overlay2": "none", "host-settings": "ignore", "directfs": "false", "allow-live-tcp-migration": "false"}
}

// program returns a command that executes this program again, with an empty environment. The
// kernel kills that process when this process dies.
func program() *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Env: []string{}, WaitDelay: time.Second, SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}}
}

// serve starts a process that serves the files of all folders, and can open no others. serve
// returns one connection to that process for each folder.
func (b *Box) serve(folders []Folder) (ends []*os.File, err error) {
	if len(folders) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(folders)
	if err != nil {
		return nil, err
	}
	cmd := program()
	cmd.Args, cmd.Stderr = sealed(filesRole, folders, []string{string(text)}), b.said
	for range folders {
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		ends, cmd.ExtraFiles = append(ends, os.NewFile(uintptr(p[0]), "folder")), append(cmd.ExtraFiles, os.NewFile(uintptr(p[1]), "folder"))
	}
	err = cmd.Start()
	for _, theirs := range cmd.ExtraFiles {
		err = errors.Join(err, theirs.Close())
	}
	if cmd.Process != nil {
		b.files = append(b.files, cmd)
	}
	return ends, err
}

// serveFiles serves folders to a sentry, over descriptors 3 and following.
func serveFiles(text string) error {
	var folders []Folder
	if err := json.Unmarshal([]byte(text), &folders); err != nil {
		return err
	}
	unix.Umask(0)
	if err := fsgofer.OpenProcSelfFD("/proc/self/fd"); err != nil {
		return err
	}
	s := lisafs.NewServer()
	c := &fsgofer.Config{RUID: os.Getuid(), EUID: os.Geteuid(), RGID: os.Getgid(), EGID: os.Getegid()}
	for n, f := range folders {
		sock, err := unet.NewSocket(3 + n)
		if err != nil {
			return err
		}
		conn, err := s.CreateConnection(sock, f.Host, fsgofer.ConnectionOpts(f.ReadOnly), fsgofer.NewConnectionImpl(c))
		if err != nil {
			return err
		}
		s.StartConnection(conn)
	}
	s.Wait()
	return nil
}

// specFile returns an anonymous file with the OCI runtime specification of the box.
func specFile(s Spec) (*os.File, error) {
	text, err := json.Marshal(describe(s))
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("spec", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "spec")
	if _, err := f.Write(text); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// rootRights are the capabilities of root in the box. Without CAP_NET_RAW the program cannot send
// packets of its own making.
var rootRights = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETFCAP", "CAP_NET_BIND_SERVICE"}

func rightsOf(s Spec) *specs.LinuxCapabilities {
	rights := &specs.LinuxCapabilities{Bounding: rootRights}
	if s.UID == 0 {
		rights.Effective, rights.Permitted = rootRights, rootRights
	}
	return rights
}

// describe returns the OCI runtime specification of a box.
func describe(s Spec) *specs.Spec {
	args := s.Args
	if s.Written != "" {
		args = initArgs(s.Args, s.Env)
	}
	limits := []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1 << 16, Hard: 1 << 20}, {Type: "RLIMIT_CORE"}}
	if s.Pids > 0 {
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_NPROC", Soft: uint64(s.Pids), Hard: uint64(s.Pids)})
	}
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
		{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777"}},
	}
	for _, at := range s.Tmpfs {
		mounts = append(mounts, specs.Mount{Destination: at, Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777"}})
	}
	notes := map[string]string{"dev.gvisor.spec.rootfs.source": "/image", "dev.gvisor.spec.rootfs.type": "erofs"}
	for n, f := range s.Folders {
		options := []string{"bind", "rw"}
		if f.ReadOnly {
			options[1] = "ro"
		}
		mounts = append(mounts, specs.Mount{Destination: f.Path, Type: boot.Bind, Source: f.Path, Options: options}) // Source is only a label: gVisor uses the connections from b.serve, in the same order
		if f.Fixed {
			about := fmt.Sprintf("%sfolder%d.", boot.MountPrefix, n)
			notes[about+"source"], notes[about+"type"], notes[about+"share"] = f.Path, boot.Bind, "container"
		}
	}
	return &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "/image", Readonly: s.ReadOnly},
		Process: &specs.Process{
			Args: args, Env: s.Env, Cwd: cmp.Or(s.Dir, "/"), Capabilities: rightsOf(s), Rlimits: limits,
			User: specs.User{UID: s.UID, GID: s.GID, AdditionalGids: s.Groups},
		},
		Hostname: id,
		Mounts:   mounts,
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace},
			{Type: specs.NetworkNamespace},
			{Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace},
			{Type: specs.MountNamespace},
		}},
		Annotations: notes,
	}
}

// # While a box runs

func (b *Box) call(method string, arg, result any) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.does.Call(method, arg, result)
}

// Signal sends a signal to the program.
func (b *Box) Signal(s syscall.Signal) error {
	pid := int32(0) // the first process in the box
	if b.spec.Written != "" {
		pid = programPID
	}
	return b.call(boot.ContMgrSignal, &boot.SignalArgs{CID: id, Signo: int32(s), PID: pid, Mode: boot.DeliverToProcess}, nil)
}

// Used returns how many bytes of memory the box uses. The number includes written files, and what
// the sentry needs itself.
func (b *Box) Used() (uint64, error) {
	var u control.MemoryUsage
	if err := b.call(boot.UsageCollect, &control.MemoryUsageOpts{}, &u); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "\nRssAnon:")
	own, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	kb, err := strconv.ParseUint(own, 10, 64)
	return u.Total + kb<<10, err
}

// End kills the box. Wait then returns reason as its error.
func (b *Box) End(reason string) {
	b.reason.Store(&reason)
	_ = b.cmd.Process.Kill() // fails if the process has ended
}

// Wait waits until the program, or the box, has ended, and calls Close. Wait returns the exit code
// of the program, or 128 plus the number of the signal that killed it.
func (b *Box) Wait() (int, error) {
	var status unix.WaitStatus
	var err, unsaved error
	if root := id; b.spec.Written == "" {
		err = b.wait.Call(boot.ContMgrWait, &root, &status)
	} else {
		err = b.wait.Call(boot.ContMgrWaitPID, &boot.WaitPIDArgs{PID: programPID, CID: id}, &status)
	}
	b.mu.Lock()
	if b.spec.Written != "" && err == nil && !b.over {
		unsaved = b.save()
	}
	b.over = true
	b.mu.Unlock()
	b.Close()
	switch reason := b.reason.Load(); {
	case reason != nil:
		return 137, errors.New(*reason)
	case err != nil:
		return 1, b.failed("it ended", err)
	case status.Signaled():
		return 128 + int(status.Signal()), unsaved
	}
	return status.ExitStatus(), unsaved
}

// save pauses the box for ever, and writes the changes in its root to the file [Spec].Written. The
// caller must hold mu.
func (b *Box) save() error {
	f, err := os.CreateTemp(filepath.Dir(b.spec.Written), ".new-")
	if err != nil {
		return err
	}
	err = errors.Join(b.does.Call(boot.ContMgrPause, nil, nil), // processes that the program has left behind may still be writing
		b.does.Call(boot.FsTarRootfsUpperLayer, &control.TarRootfsUpperLayerOpts{ContainerID: id, FilePayload: urpc.FilePayload{Files: []*os.File{f}}}, nil))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), b.spec.Written)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("what the server wrote is not kept: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// Close kills and reaps the processes of the box.
func (b *Box) Close() {
	b.gone.Do(func() {
		all := b.files
		if b.cmd != nil {
			all = append(all, b.cmd)
		}
		for _, cmd := range all {
			_ = cmd.Process.Kill() // fails if the process has ended
			_ = cmd.Wait()         // the status says nothing new, because the process was killed
		}
		for _, c := range []*urpc.Client{b.wait, b.does} {
			if c != nil {
				_ = c.Close() // fails if the process has ended
			}
		}
		_ = unix.Close(b.door) // fails if there is none
	})
}

// failed closes a box that could not be run. The error names the step that failed, and has the first
// line that the sentry wrote to stderr or, without one, that of err.
func (b *Box) failed(step string, err error) error {
	b.Close() // after this nothing more is written to stderr
	said := b.said.line()
	if said == "" && err != nil {
		said, _, _ = strings.Cut(err.Error(), "\n")
	}
	return fmt.Errorf("the box did not run: %s: %s%s", step, said, lacks())
}

// head stores the first 4 KiB that are written to it.
type head struct {
	mu   sync.Mutex
	text []byte
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text = append(h.text, p[:min(len(p), 4<<10-len(h.text))]...)
	return len(p), nil
}

// line returns the first line that is not blank.
func (h *head) line() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	line, _, _ := bytes.Cut(bytes.TrimSpace(h.text), []byte("\n"))
	return string(line)
}
