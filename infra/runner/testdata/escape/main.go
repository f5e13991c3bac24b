// Command escape is a hostile server. It tries every way out of its sandbox that it
// knows, and prints its attempts and the open ways. A line is
//
//	tried KIND N          so many attempts of a kind
//	open KIND WHAT        one of them succeeded
//	leak KIND WHERE       it has read one of the secrets
//
// Its arguments are the folder it may write in, and what it was told about other programs:
// KIND=VALUE.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// room holds what the program knows, and counts its attempts.
type room struct {
	own   string              // the folder that it may write in
	told  map[string][]string // of others, by kind
	tried map[string]int
}

// secret is what all secrets look like. None of them is in its arguments.
var secret = regexp.MustCompile(`escape-secret-[0-9a-f]{16}`)

func main() {
	if os.Args[1] == "hold" {
		hold()
		return
	}
	r := &room{own: os.Args[1], told: map[string][]string{}, tried: map[string]int{}}
	for _, arg := range os.Args[2:] {
		kind, value, _ := strings.Cut(arg, "=")
		r.told[kind] = append(r.told[kind], value)
	}
	if r.told["only"] == nil {
		r.everything()
	}
	r.sockets()
	r.files()
	r.memory()
	for _, pid := range r.told["pid"] {
		r.process(pid)
	}
	if r.told["again"] == nil {
		r.memfd()
	}
	for _, kind := range slices.Sorted(maps.Keys(r.tried)) {
		say("tried %s %d", kind, r.tried[kind])
	}
}

// hold plays a neighbour of the hostile server: it has a secret in its environment, its
// memory and its folder.
func hold() {
	has := os.Getenv("SECRET")
	if err := os.WriteFile("secret", []byte(has), 0o600); err != nil {
		say("%v", err)
	}
	say("%d", os.Getpid())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func say(format string, args ...any) { _, _ = fmt.Fprintf(os.Stdout, format+"\n", args...) }

// try counts an attempt, and prints it if it succeeded.
func (r *room) try(kind, what string, err error) bool {
	r.tried[kind]++
	if err == nil {
		say("open %s %s", kind, what)
	}
	return err == nil
}

// look searches what was read.
func (r *room) look(kind, where string, read []byte) {
	if secret.Match(read) {
		say("leak %s %s", kind, where)
	}
}

// everything looks for other programs, and makes the attempts that need none.
func (r *room) everything() {
	r.told["socket"] = append(r.told["socket"], unixSockets()...)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		say("proc %v", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && pid != os.Getppid() {
			r.told["pid"] = append(r.told["pid"], e.Name())
		}
	}
	r.families()
	r.kernel()
	r.privileges()
}

// unixSockets lists the sockets that the kernel or the disk names.
func unixSockets() []string {
	var all []string
	table, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 7 && fields[0] != "Num" {
			all = append(all, fields[7])
		}
	}
	for _, root := range []string{"/run", "/var/run", "/tmp", "/var/lib", "/var/cache"} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil && d != nil && d.IsDir():
				return fs.SkipDir
			case err == nil && d.Type()&fs.ModeSocket != 0:
				all = append(all, path)
			}
			return nil
		})
	}
	return all
}

// # Sockets

func (r *room) sockets() {
	slices.Sort(r.told["socket"])
	for _, name := range slices.Compact(r.told["socket"]) {
		to := &unix.SockaddrUnix{Name: name}
		for kind, text := range map[int]string{unix.SOCK_STREAM: "stream", unix.SOCK_DGRAM: "datagram", unix.SOCK_SEQPACKET: "seqpacket", unix.SOCK_RAW: "raw"} {
			what := text + " " + name
			r.try("socket", what, withSocket(kind, func(fd int) error { return unix.Connect(fd, to) }))
			r.try("socket", "send "+what, withSocket(kind, func(fd int) error { return unix.Sendto(fd, []byte("x"), unix.MSG_DONTWAIT, to) }))
			r.try("pair", what, withPair(kind, func(fd, _ int) error { return unix.Connect(fd, to) }))
			r.try("pair", "send "+what, withPair(kind, func(fd, _ int) error {
				// A pair of SOCK_SEQPACKET ignores the address and sends to its own other
				// end.
				if err := unix.Sendto(fd, []byte("x"), unix.MSG_DONTWAIT, to); err != nil || kind == unix.SOCK_SEQPACKET {
					return cmp.Or(err, error(unix.EISCONN))
				}
				return nil
			}))
			r.try("pair", "alone "+what, withPair(kind, func(fd, other int) error {
				_ = unix.Close(other)
				_ = unix.Shutdown(fd, unix.SHUT_RDWR)
				_ = unix.Connect(fd, &unix.SockaddrUnix{})
				return unix.Connect(fd, to)
			}))
		}
	}
	for _, address := range r.told["tcp"] {
		r.try("tcp", address, connectTCP(address))
	}
}

func withSocket(kind int, f func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return f(fd)
}

func withPair(kind int, f func(fd, other int) error) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) }()
	return f(pair[0], pair[1])
}

func connectTCP(address string) error {
	host, port, _ := strings.Cut(address, ":")
	n, err := strconv.Atoi(port)
	if err != nil || host != "127.0.0.1" {
		return unix.EINVAL
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Connect(fd, &unix.SockaddrInet4{Port: n, Addr: [4]byte{127, 0, 0, 1}})
}

// families opens sockets of all families. It asks the kernel which sockets it has got,
// and does not trust the arguments of its calls.
func (r *room) families() {
	protocols, high := []uintptr{0, 1, 2, 4, 15, 16}, []uintptr{0, 1 << 32}
	got := map[string]bool{}
	for family := range uintptr(64) {
		for kind := range uintptr(16) {
			for _, protocol := range protocols {
				for _, bits := range high {
					fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, bits|family, bits|kind|unix.SOCK_CLOEXEC, bits|protocol)
					r.tried["family"]++
					if errno == 0 {
						got[familyOf(int(fd))] = true
						_ = unix.Close(int(fd))
					}
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		say("open family %s", name)
	}
}

func familyOf(fd int) string {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err.Error()
	}
	protocol, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	switch domain {
	case unix.AF_INET, unix.AF_INET6:
		return "internet"
	case unix.AF_NETLINK:
		return fmt.Sprintf("netlink/%d", protocol)
	default:
		return strconv.Itoa(domain)
	}
}

// # The kernel

// kernel tries system calls that could get around all other guards.
func (r *room) kernel() {
	var zero [256]byte
	at := uintptr(unsafe.Pointer(&zero[0]))
	for name, call := range map[string][7]uintptr{
		"io_uring":      {unix.SYS_IO_URING_SETUP, 4, at},
		"userns":        {unix.SYS_UNSHARE, unix.CLONE_NEWUSER},
		"netns":         {unix.SYS_UNSHARE, unix.CLONE_NEWNET},
		"mountns":       {unix.SYS_UNSHARE, unix.CLONE_NEWNS},
		"keyctl":        {unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, ^uintptr(3), 1}, // that of the user
		"session ring":  {unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, ^uintptr(2), 1},
		"add_key":       {unix.SYS_ADD_KEY, at, at, at, 1, ^uintptr(3)},
		"request_key":   {unix.SYS_REQUEST_KEY, at, at, 0, 0},
		"bpf":           {unix.SYS_BPF, unix.BPF_PROG_LOAD, at, 128},
		"perf":          {unix.SYS_PERF_EVENT_OPEN, at, 0, ^uintptr(0), ^uintptr(0), 0},
		"userfaultfd":   {unix.SYS_USERFAULTFD, 1},
		"open_handle":   {unix.SYS_OPEN_BY_HANDLE_AT, ^uintptr(99), at, 0},
		"mount":         {unix.SYS_MOUNT, at, at, at, 0, 0},
		"fsopen":        {unix.SYS_FSOPEN, at, 0},
		"chroot":        {unix.SYS_CHROOT, at},
		"clone3":        {unix.SYS_CLONE3, at, 64},
		"clone userns":  {unix.SYS_CLONE, unix.CLONE_NEWUSER | uintptr(unix.SIGCHLD)},
		"setuid":        {unix.SYS_SETUID, 0},
		"fanotify":      {unix.SYS_FANOTIFY_INIT, 0, 0},
		"queue":         {unix.SYS_MQ_OPEN, at, unix.O_CREAT | unix.O_RDWR, 0o600, 0},
		"shared memory": {unix.SYS_SHMGET, 0x5eed, 4096, 0o1600},
	} {
		_, _, errno := unix.RawSyscall6(call[0], call[1], call[2], call[3], call[4], call[5], call[6])
		var err error
		if errno != 0 {
			err = errno
		}
		if name == "setuid" && os.Getuid() == 0 {
			continue // it is that already
		}
		r.try("kernel", name, err)
	}
	for _, ns := range []string{"net", "mnt", "user", "pid", "ipc"} {
		fd, err := unix.Open("/proc/1/ns/"+ns, unix.O_RDONLY, 0)
		if err == nil {
			err = unix.Setns(fd, 0)
		}
		r.try("kernel", "setns "+ns, err)
	}
	tty, err := unix.Open("/dev/tty", unix.O_RDWR, 0)
	if err == nil {
		err = unix.IoctlSetPointerInt(tty, unix.TIOCSTI, 'x')
	}
	r.try("kernel", "terminal", err)
}

// privileges prints the privileges that this program has and should not have.
func (r *room) privileges() {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch name {
		case "CapEff", "CapPrm", "CapInh", "CapAmb":
			if strings.Trim(value, "0") != "" {
				say("open privileges %s %s", name, value)
			}
		case "NoNewPrivs", "Seccomp":
			if value == "0" {
				say("open privileges no %s", name)
			}
		}
	}
	r.tried["privileges"] += 6
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, e := range fds {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if n, _ := strconv.Atoi(e.Name()); n > 2 && err == nil && !strings.HasPrefix(to, "/proc/") && !strings.HasPrefix(to, "anon_inode:") && !strings.HasPrefix(to, "/sys/fs/cgroup/") {
			say("open privileges descriptor %s", to)
		}
	}
	for _, variable := range os.Environ() {
		r.look("privileges", "its own environment", []byte(variable))
	}
}

// memory attaches to the shared memory of System V.
func (r *room) memory() {
	for _, id := range append(r.told["memory"], fields("/proc/sysvipc/shm", 1)...) {
		n, _ := strconv.Atoi(id)
		mem, err := unix.SysvShmAttach(n, 0, unix.SHM_RDONLY)
		if r.try("memory", id, err) {
			r.look("memory", id, mem[:min(len(mem), 4096)])
			_ = unix.SysvShmDetach(mem)
		}
	}
}

// fields is a column of a table, below its heading.
func fields(file string, column int) []string {
	table, _ := os.ReadFile(file)
	var all []string
	for i, line := range strings.Split(string(table), "\n") {
		if cells := strings.Fields(line); i > 0 && len(cells) > column {
			all = append(all, cells[column])
		}
	}
	return all
}

// # Files

func (r *room) files() {
	for _, path := range r.told["system"] {
		_, err := os.ReadFile(path)
		r.try("system", path, err)
	}
	for i, path := range r.told["file"] {
		read, err := os.ReadFile(path)
		if r.try("file", "read "+path, err) {
			r.look("file", path, read)
		}
		link := filepath.Join(r.own, fmt.Sprintf("link-%d", i))
		if err := os.Symlink(path, link); err == nil {
			read, err = os.ReadFile(link)
			r.try("file", "read through a link "+path, err)
			r.look("file", path, read)
		}
		r.try("file", "link "+path, os.Link(path, link+"-hard"))
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if r.try("file", "append "+path, err) {
			_ = f.Close()
		}
		r.try("file", "rename "+path, os.Rename(path, path+".moved"))
		r.try("file", "truncate "+path, os.Truncate(path, 0))
		r.try("file", "remove "+path, os.Remove(path))
		r.try("mode", path, os.Chmod(path, 0o666))
	}
	for _, folder := range r.told["folder"] {
		_, err := os.ReadDir(folder)
		r.try("file", "list "+folder, err)
		r.try("file", "create in "+folder, os.WriteFile(filepath.Join(folder, "was-here"), nil, 0o666))
		r.try("file", "make a folder in "+folder, os.Mkdir(filepath.Join(folder, "folder-was-here"), 0o777))
		r.try("mode", folder, os.Chmod(folder, 0o777))
	}
}

// # Processes

// process tries to read and control another process.
func (r *room) process(pid string) {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return
	}
	for _, name := range []string{"environ", "maps", "mem", "auxv", "stack", "root/etc/hostname", "cwd/.", "task/" + pid + "/environ", "pagemap"} {
		path := filepath.Join("/proc", pid) + "/" + name
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err == nil && !strings.HasSuffix(name, "/.") && name != "mem" {
			var read []byte
			if read, err = io.ReadAll(io.LimitReader(f, 1<<16)); err == nil && len(bytes.TrimSpace(read)) == 0 {
				err = unix.ENODATA // of the kernel's own
			}
			r.look("process", path, read)
		}
		if f != nil {
			_ = f.Close()
		}
		r.try("process", path, err)
	}
	for _, link := range []string{"fd/0", "fd/1", "fd/2", "fd/3", "fd/5", "fd/7", "cwd", "exe", "root", "ns/net"} {
		path := filepath.Join("/proc", pid, link)
		_, err := os.Readlink(path)
		r.try("process", path, err)
		if f, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0); strings.HasPrefix(link, "fd/") && r.try("process", "open "+path, err) {
			_ = unix.Close(f)
		}
	}
	r.try("process", "ptrace "+pid, unix.PtraceSeize(n)) // it is not stopped, and let go when this program ends
	buf := make([]byte, 8)
	_, err = unix.ProcessVMReadv(n, []unix.Iovec{{Base: &buf[0], Len: 8}}, []unix.RemoteIovec{{Base: 0xc000000000, Len: 8}}, 0)
	r.try("process", "read the memory of "+pid, err)
	var limit unix.Rlimit
	r.try("process", "limits of "+pid, unix.Prlimit(n, unix.RLIMIT_NOFILE, nil, &limit))
	r.schedule(n)
	r.try("signal", pid, unix.Kill(n, 0))
	fd, err := unix.PidfdOpen(n, 0)
	if err == nil {
		_, err = unix.PidfdGetfd(fd, 0, 0)
		_ = unix.Close(fd)
	}
	r.try("process", "descriptor of "+pid, err)
}

// schedule tries to set how another process gets the processor and the disk. It sets what
// is set already.
func (r *room) schedule(pid int) {
	var param, attr [64]byte
	attr[0] = 48 // the size of struct sched_attr
	var cpus unix.CPUSet
	_ = unix.SchedGetaffinity(pid, &cpus)
	now, _ := unix.Getpriority(unix.PRIO_PROCESS, pid) // 20 less the value
	for name, call := range map[string][4]uintptr{
		"scheduler":   {unix.SYS_SCHED_SETSCHEDULER, uintptr(pid), 0, uintptr(unsafe.Pointer(&param))},
		"parameter":   {unix.SYS_SCHED_SETPARAM, uintptr(pid), uintptr(unsafe.Pointer(&param))},
		"attributes":  {unix.SYS_SCHED_SETATTR, uintptr(pid), uintptr(unsafe.Pointer(&attr)), 0},
		"processors":  {unix.SYS_SCHED_SETAFFINITY, uintptr(pid), unsafe.Sizeof(cpus), uintptr(unsafe.Pointer(&cpus))},
		"priority":    {unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, uintptr(pid), uintptr(20 - now)},
		"I/O":         {unix.SYS_IOPRIO_SET, 1, uintptr(pid), 0},
		"of the user": {unix.SYS_SETPRIORITY, unix.PRIO_USER, 0, 0},
	} {
		if name == "of the user" && r.told["only"] != nil {
			continue // it would do harm
		}
		_, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3])
		var err error
		if errno != 0 {
			err = errno
		}
		r.try("schedule", fmt.Sprintf("%s of %d", name, pid), err)
	}
}

// memfd executes this program from memory. The new process must be as confined as this
// one.
func (r *room) memfd() {
	fd, err := unix.MemfdCreate("again", 0)
	if err != nil {
		say("memfd %v", err)
		return
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		_, err = os.NewFile(uintptr(fd), "again").Write(self)
	}
	args := []string{r.own, "again=1", "only=1"}
	for _, kind := range []string{"socket", "file", "folder", "system", "pid", "memory"} {
		for _, value := range r.told[kind][:min(len(r.told[kind]), 64)] {
			args = append(args, kind+"="+value)
		}
	}
	var out []byte
	if err == nil {
		cmd := exec.Cmd{
			Path: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), Args: append([]string{"again"}, args...), Env: []string{},
			SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		}
		out, err = cmd.Output()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		say("memfd %v", err)
		return
	}
	r.tried["memfd"]++
	for line := range strings.Lines(string(out)) {
		if what, ok := strings.CutPrefix(line, "tried "); ok {
			kind, n, _ := strings.Cut(strings.TrimSpace(what), " ")
			count, _ := strconv.Atoi(n)
			r.tried[kind] += count
			continue
		}
		say("%s, executed from memory", strings.TrimSpace(line))
	}
}
