package sandbox

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// listener is a server on this machine that a program may try to reach.
func listener(t *testing.T, network, address string) net.Listener {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), network, address)
	commontest.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	return l
}

func TestUnixSocketsOfOthersAreOutOfReach(t *testing.T) {
	name := "sandbox-test-" + t.Name()
	listener(t, "unix", "@"+name)
	everyHost(t, func(t *testing.T, h host) {
		p := h.policy(t)
		file := filepath.Join(h.folder(t), "socket")
		listener(t, "unix", file)
		commontest.OK(t, os.Chmod(file, 0o777)) // everybody may connect
		for _, address := range []string{"@" + name, file} {
			expect(t, h.probe(t, p, "reach", address), "connect=EAFNOSUPPORT", "send=ESOCKTNOSUPPORT")
			p.Sockets = InternetSockets
			expect(t, h.probe(t, p, "reach", address), "connect=EAFNOSUPPORT", "send=ESOCKTNOSUPPORT")
		}
	})
}

// interpret runs a seccomp filter for one system call.
func interpret(t *testing.T, filter []unix.SockFilter, arch, nr uint32, args []uint64) uint32 {
	t.Helper()
	data := map[uint32]uint32{dataNumber: nr, dataArch: arch}
	for i, arg := range args {
		data[uint32(dataArg0+8*i)] = uint32(arg)
	}
	acc := uint32(0)
	for pc := 0; pc < len(filter); pc++ {
		ins := filter[pc]
		jump := func(cond bool) {
			if cond {
				pc += int(ins.Jt)
			} else {
				pc += int(ins.Jf)
			}
		}
		switch ins.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = data[ins.K]
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			acc &= ins.K
		case unix.BPF_RET | unix.BPF_K:
			return ins.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(acc == ins.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(acc >= ins.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(acc&ins.K != 0)
		default:
			t.Fatalf("instruction %#x", ins.Code)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}

// The prober shows what the kernel of this machine refuses. Here are other architectures, the
// calls that the prober does not make, and those that the kernel may refuse without a filter too.
func TestFilter(t *testing.T) {
	const amd, arm = unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_AARCH64
	off, on, all := Policy{}, Policy{Sockets: InternetSockets}, Policy{Sockets: AllSockets}
	afnosupport, eperm := refuse(unix.EAFNOSUPPORT), refuse(unix.EPERM)
	args := func(all ...uint64) []uint64 { return all }
	const allow, kill = uint32(unix.SECCOMP_RET_ALLOW), uint32(unix.SECCOMP_RET_KILL_PROCESS)
	for _, c := range []struct {
		name    string
		policy  Policy
		made    uint32
		arch    uint32
		nr      uint32
		args    []uint64
		verdict uint32
	}{
		{"inet socket, off", off, amd, amd, unix.SYS_SOCKET, args(unix.AF_INET), afnosupport},
		{"inet6 socket, off", off, amd, amd, unix.SYS_SOCKET, args(unix.AF_INET6), afnosupport},
		{"routes, off", off, amd, amd, unix.SYS_SOCKET, args(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE), afnosupport},
		{"unix socket, all", all, amd, amd, unix.SYS_SOCKET, args(unix.AF_UNIX), allow},
		{"packets, on", on, amd, amd, unix.SYS_SOCKET, args(unix.AF_PACKET, unix.SOCK_RAW), afnosupport},
		{"io_uring, on", on, amd, amd, unix.SYS_IO_URING_SETUP, nil, eperm},
		{"inet socket, on", on, amd, amd, unix.SYS_SOCKET, args(unix.AF_INET), allow},
		{"unix socket with more bits, on", on, amd, amd, unix.SYS_SOCKET, args(1<<32 | unix.AF_UNIX), afnosupport},
		{"routes, on", on, amd, amd, unix.SYS_SOCKET, args(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE), allow},
		{"programs by netlink", on, amd, amd, unix.SYS_SOCKET, args(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_USERSOCK), afnosupport},
		{"vsock", on, amd, amd, unix.SYS_SOCKET, args(unix.AF_VSOCK, unix.SOCK_STREAM), afnosupport},
		{"pair with flags", off, amd, amd, unix.SYS_SOCKETPAIR, args(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK), allow},
		{"datagram pair, all", all, amd, amd, unix.SYS_SOCKETPAIR, args(unix.AF_UNIX, unix.SOCK_DGRAM), allow},
		{"datagram pair with more bits", off, amd, amd, unix.SYS_SOCKETPAIR, args(unix.AF_UNIX, 1<<32|unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), refuse(unix.ESOCKTNOSUPPORT)},
		{"raw pair", off, amd, amd, unix.SYS_SOCKETPAIR, args(unix.AF_UNIX, unix.SOCK_RAW), refuse(unix.ESOCKTNOSUPPORT)},
		{"inet pair", off, amd, amd, unix.SYS_SOCKETPAIR, args(unix.AF_INET, unix.SOCK_STREAM), afnosupport},
		{"other architecture", off, amd, arm, unix.SYS_READ, nil, kill},
		{"x32", off, amd, amd, x32 | unix.SYS_SOCKET, args(unix.AF_INET), kill},
		{"no call", off, amd, amd, ^uint32(0), nil, allow},
		{"arm", off, arm, arm, unix.SYS_SOCKET, args(unix.AF_INET), afnosupport},
		{"amd on arm", off, arm, amd, unix.SYS_READ, nil, kill},
		{"32 bits on arm", all, arm, unix.AUDIT_ARCH_ARM, 281, nil, kill},
		{"thread", on, amd, amd, unix.SYS_CLONE, args(unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND), allow},
		{"user namespace", on, amd, amd, unix.SYS_CLONE, args(unix.CLONE_NEWUSER), eperm},
		{"clone3", on, amd, amd, unix.SYS_CLONE3, nil, refuse(unix.ENOSYS)},
		{"ptrace", all, amd, amd, unix.SYS_PTRACE, nil, eperm},
		{"shared memory", on, amd, amd, unix.SYS_SHMAT, nil, eperm},
		{"shared memory, all", all, amd, amd, unix.SYS_SHMAT, nil, allow},
		{"limits of its own", on, amd, amd, unix.SYS_PRLIMIT64, args(0), allow},
		{"limits of another", all, amd, amd, unix.SYS_PRLIMIT64, args(4711), eperm},
		{"affinity", on, amd, amd, unix.SYS_SCHED_SETAFFINITY, nil, allow},
	} {
		commontest.EqualIn(t, c.name, c.verdict, interpret(t, program(c.policy, c.made), c.arch, c.nr, c.args))
	}
}
