package sandbox

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file assembles the seccomp filter without a library. go-seccomp-bpf (1.6) can only compare
// a whole argument or test its bits, so it has no rule for a socket's type without its flags.

// auditArch returns the kernel's number for the system call ABI of this architecture, 0 if this
// package has no filter for it.
func auditArch() uint32 {
	switch runtime.GOARCH {
	case "amd64":
		return unix.AUDIT_ARCH_X86_64
	case "arm64":
		return unix.AUDIT_ARCH_AARCH64
	default:
		return 0
	}
}

// Offsets in struct seccomp_data, which describes a system call to a filter. The offsets of
// arguments are for little-endian machines.
const (
	dataNumber = 0
	dataArch   = 4
	dataArg0   = 16
	dataArg1   = 24
	dataArg2   = 32
)

// sockType is the mask for a socket's type without its flags.
const sockType = 0xf

// x32 is the bit that is set in the numbers of system calls of amd64's x32 ABI.
const x32 = 0x40000000

// newNamespaces are the clone flags for new namespaces, in which a process could reach more of the
// kernel.
const newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// denied returns system calls that no server needs. Some get around this filter, or reach other
// processes or keys of the user. Others reach parts of the kernel that have often had security
// holes.
func denied(p Policy) []uint32 {
	calls := []uint32{
		unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, // io_uring can open sockets, too
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
		unix.SYS_UNSHARE, unix.SYS_SETNS,
		unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	}
	if p.CPUs > 0 {
		calls = append(calls, unix.SYS_SCHED_SETAFFINITY)
	}
	if p.Sockets < AllSockets {
		calls = append(calls, // these reach message queues and shared memory of other programs of the user
			unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL,
			unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_SEMCTL, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK,
		)
	}
	return calls
}

// filter installs the seccomp filter on this thread.
func filter(o order) error {
	if !o.Support.Seccomp {
		return nil
	}
	code := program(o.Policy, auditArch())
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(code)
	if errno != 0 {
		return fmt.Errorf("set the filter: %w", errno)
	}
	return nil
}

// program assembles the filter of a policy, which allows every call that it does not deny.
func program(p Policy, arch uint32) []unix.SockFilter {
	var c code
	// On another ABI the numbers mean other system calls, so 32-bit programs are killed.
	c.load(dataArch)
	c.unless(arch, unix.SECCOMP_RET_KILL_PROCESS)
	c.load(dataNumber)
	if arch == unix.AUDIT_ARCH_X86_64 {
		c.when(^uint32(0), unix.SECCOMP_RET_ALLOW) // -1 is no system call; the kernel returns ENOSYS
		c.fromOn(x32, unix.SECCOMP_RET_KILL_PROCESS)
	}
	for _, nr := range denied(p) {
		c.when(nr, refuse(unix.EPERM))
	}
	// A filter cannot see the flags of clone3. If clone3 returns ENOSYS, C libraries use clone.
	c.when(unix.SYS_CLONE3, refuse(unix.ENOSYS))
	c.call(unix.SYS_CLONE, func(c *code) { c.any(newNamespaces, refuse(unix.EPERM)) })
	// A program could make another process fail by changing its limits, such as CPU time or open
	// files. The only process that a program may name is 0, itself.
	c.call(unix.SYS_PRLIMIT64, func(c *code) { c.unless(0, refuse(unix.EPERM)) })
	// A program could also take CPU time from its runner, or from all processes of its user. The
	// program may change only its own thread, which is 0.
	for _, nr := range []uint32{unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_SETAFFINITY} {
		c.call(nr, func(c *code) { c.unless(0, refuse(unix.EPERM)) })
	}
	c.call(unix.SYS_SETPRIORITY, func(c *code) { c.ownThread(unix.PRIO_PROCESS) })
	c.call(unix.SYS_IOPRIO_SET, func(c *code) { c.ownThread(ioprioProcess) })
	if p.Sockets < AllSockets {
		c.call(unix.SYS_SOCKET, func(c *code) { c.socket(p.Sockets) })
		c.call(unix.SYS_SOCKETPAIR, (*code).pair)
	}
	c.ret(unix.SECCOMP_RET_ALLOW)
	return c
}

// ioprioProcess is IOPRIO_WHO_PROCESS of linux/ioprio.h.
const ioprioProcess = 1

// ownThread allows a call only if its first argument is kind, the code for a thread, and its second
// is 0, the calling thread.
func (c *code) ownThread(kind uint32) {
	c.unless(kind, refuse(unix.EPERM))
	c.load(dataArg1)
	c.unless(0, refuse(unix.EPERM))
}

// socket allows the families of internet sockets if s is InternetSockets, and refuses all others.
func (c *code) socket(s Sockets) {
	if s == InternetSockets {
		c.when(unix.AF_INET, unix.SECCOMP_RET_ALLOW)
		c.when(unix.AF_INET6, unix.SECCOMP_RET_ALLOW)
		c.unless(unix.AF_NETLINK, refuse(unix.EAFNOSUPPORT))
		// Other netlink protocols list the sockets of other programs, or reach those programs.
		c.load(dataArg2)
		c.when(unix.NETLINK_ROUTE, unix.SECCOMP_RET_ALLOW)
	}
	c.ret(refuse(unix.EAFNOSUPPORT))
}

// pair allows only socket pairs whose ends cannot connect to anything else. pair refuses SOCK_RAW
// too, for which the kernel makes a datagram unix socket.
func (c *code) pair() {
	c.unless(unix.AF_UNIX, refuse(unix.EAFNOSUPPORT))
	c.load(dataArg1)
	c.add(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, 0, 0, sockType)
	c.when(unix.SOCK_STREAM, unix.SECCOMP_RET_ALLOW)
	c.when(unix.SOCK_SEQPACKET, unix.SECCOMP_RET_ALLOW)
	c.ret(refuse(unix.ESOCKTNOSUPPORT))
}

func refuse(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// code is a filter that is being assembled. The instructions test the value that was loaded last.
type code []unix.SockFilter

func (c *code) add(op uint16, jt, jf uint8, k uint32) {
	*c = append(*c, unix.SockFilter{Code: op, Jt: jt, Jf: jf, K: k})
}

func (c *code) load(offset uint32)      { c.add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, 0, 0, offset) }
func (c *code) ret(action uint32)       { c.add(unix.BPF_RET|unix.BPF_K, 0, 0, action) }
func (c *code) when(v, action uint32)   { c.test(unix.BPF_JEQ, v, 0, 1, action) }
func (c *code) unless(v, action uint32) { c.test(unix.BPF_JEQ, v, 1, 0, action) }
func (c *code) fromOn(v, action uint32) { c.test(unix.BPF_JGE, v, 0, 1, action) }
func (c *code) any(bits, action uint32) { c.test(unix.BPF_JSET, bits, 0, 1, action) }

func (c *code) test(op uint16, v uint32, jt, jf uint8, action uint32) {
	c.add(unix.BPF_JMP|op|unix.BPF_K, jt, jf, v)
	c.ret(action)
}

// call adds the rules for the system call nr: check tests its first argument, and what check does
// not refuse is allowed.
func (c *code) call(nr uint32, check func(*code)) {
	var body code
	body.load(dataArg0)
	check(&body)
	body.ret(unix.SECCOMP_RET_ALLOW)
	c.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, 0, uint8(len(body)), nr)
	*c = append(*c, body...)
}
