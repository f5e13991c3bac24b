package sandbox

import (
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// listener is a server on this machine that a program may try to reach.
func listener(t *testing.T, network, address string) net.Listener {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
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

func TestNetworkOffLeavesUnixSocketsOnlyInGo(t *testing.T) {
	everyHost(t, func(t *testing.T, h host) {
		l := listener(t, "tcp", "127.0.0.1:0")
		p := h.policy(t)
		expect(t, h.probe(t, p, "sockets", l.Addr().String(), ""),
			"tcp=EAFNOSUPPORT", "udp=EAFNOSUPPORT", "raw=EAFNOSUPPORT", "tcp6=EAFNOSUPPORT", "packet=EAFNOSUPPORT",
			"netlink=EAFNOSUPPORT", "connect=EAFNOSUPPORT", "io_uring=EPERM", "unix=ok", "unix listen=ok", "unix connect=ok")
	})
}

func TestNetworkOnReachesTheNetwork(t *testing.T) {
	everyHost(t, func(t *testing.T, h host) {
		l := listener(t, "tcp", "127.0.0.1:0")
		p := h.policy(t)
		p.Network = true
		// Sockets for which one must be root stay shut, and so does io_uring.
		expect(t, h.probe(t, p, "sockets", l.Addr().String(), ""),
			"tcp=ok", "udp=ok", "raw=EPERM", "packet=EPERM", "netlink=ok", "connect=ok", "io_uring=EPERM", "unix connect=ok")
	})
}

func TestNetworkOffHoldsInC(t *testing.T) {
	program := build(t, "sockets", "cc", func(to string) []string {
		return []string{"-Wall", "-D_GNU_SOURCE", "-o", to, "testdata/sockets.c"}
	})
	everyHost(t, func(t *testing.T, h host) {
		r := h.run(t, job{Policy: h.policy(t), Path: program})
		expect(t, r.out, "tcp=EAFNOSUPPORT", "udp=EAFNOSUPPORT", "raw=EAFNOSUPPORT", "tcp6=EAFNOSUPPORT",
			"packet=EAFNOSUPPORT", "netlink=EAFNOSUPPORT", "high bits=EAFNOSUPPORT", "unix=ok", "pair=ok", "io_uring=EPERM",
			"no call=ENOSYS")
		if runtime.GOARCH == "amd64" {
			expect(t, r.out, "compat=SIGSYS", "x32=SIGSYS")
		}
	})
}

func TestNetworkOffHoldsInPython(t *testing.T) {
	python := interpreter(t, "python3", "for instance with apt-get install python3")
	script := shared(t, "testdata/sockets.py")
	everyHost(t, func(t *testing.T, h host) {
		l := listener(t, "tcp", "127.0.0.1:0")
		p := h.policy(t)
		p.Read = []string{script}
		off := h.run(t, job{Policy: p, Path: python, Args: []string{script, l.Addr().String()}})
		expect(t, off.out, "tcp=EAFNOSUPPORT", "udp=EAFNOSUPPORT", "raw=EAFNOSUPPORT", "tcp6=EAFNOSUPPORT",
			"connect=EAFNOSUPPORT", "pair=ok", "child=ok", "thread=ok", "file=ok")
		p.Network = true
		on := h.run(t, job{Policy: p, Path: python, Args: []string{script, l.Addr().String()}})
		expect(t, on.out, "tcp=ok", "connect=ok")
	})
}

func TestNetworkOffHoldsInNode(t *testing.T) {
	node := interpreter(t, "node", "from https://nodejs.org")
	script := shared(t, "testdata/sockets.js")
	everyHost(t, func(t *testing.T, h host) {
		l := listener(t, "tcp", "127.0.0.1:0")
		p := h.policy(t)
		p.Read = []string{script}
		off := h.run(t, job{Policy: p, Path: node, Args: []string{script, l.Addr().String()}})
		expect(t, off.out, "connect=EAFNOSUPPORT", "udp=EAFNOSUPPORT", "unix=ok", "thread=ok", "child=ok", "file=ok")
		p.Network = true
		on := h.run(t, job{Policy: p, Path: node, Args: []string{script, l.Addr().String()}})
		expect(t, on.out, "connect=ok", "udp=ok")
	})
}

func TestAbstractSocketsOfOthersAreOutOfReachSinceLinux612(t *testing.T) {
	want := "abstract=EPERM"
	if Probe().Landlock < 6 {
		want = "abstract=ok"
	}
	name := "sandbox-test-" + t.Name()
	listener(t, "unix", "@"+name)
	everyHost(t, func(t *testing.T, h host) {
		expect(t, h.probe(t, h.policy(t), "sockets", "127.0.0.1:1", name), want)
	})
}

// shared copies a file to where everybody can read it.
func shared(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	to := host{uid: os.Getuid()}.folder(t) + "/" + "script"
	if err := os.WriteFile(to, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(to, 0o644); err != nil {
		t.Fatal(err)
	}
	return to
}

// interpret runs a filter for one system call.
func interpret(t *testing.T, filter []unix.SockFilter, arch, nr uint32, arg0 uint64) uint32 {
	t.Helper()
	data := map[uint32]uint32{dataNumber: nr, dataArch: arch, dataArg0: uint32(arg0)}
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

func TestFilter(t *testing.T) {
	const amd, arm = unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_AARCH64
	off, on := Policy{}, Policy{Network: true}
	afnosupport, eperm := refuse(unix.EAFNOSUPPORT), refuse(unix.EPERM)
	const allow, kill = uint32(unix.SECCOMP_RET_ALLOW), uint32(unix.SECCOMP_RET_KILL_PROCESS)
	for _, c := range []struct {
		name    string
		policy  Policy
		made    uint32
		arch    uint32
		nr      uint32
		arg0    uint64
		verdict uint32
	}{
		{"read", off, amd, amd, unix.SYS_READ, 0, allow},
		{"inet socket, off", off, amd, amd, unix.SYS_SOCKET, unix.AF_INET, afnosupport},
		{"inet socket, on", on, amd, amd, unix.SYS_SOCKET, unix.AF_INET, allow},
		{"unix socket, off", off, amd, amd, unix.SYS_SOCKET, unix.AF_UNIX, allow},
		{"pair", off, amd, amd, unix.SYS_SOCKETPAIR, unix.AF_UNIX, allow},
		{"inet pair", off, amd, amd, unix.SYS_SOCKETPAIR, unix.AF_INET, afnosupport},
		{"other architecture", off, amd, arm, unix.SYS_READ, 0, kill},
		{"arm", off, arm, arm, unix.SYS_SOCKET, unix.AF_INET, afnosupport},
		{"amd on arm", off, arm, amd, unix.SYS_READ, 0, kill},
		{"x32", on, amd, amd, x32 | unix.SYS_READ, 0, kill},
		{"no call", on, amd, amd, 0xffffffff, 0, allow},
		{"fork", on, amd, amd, unix.SYS_CLONE, uint64(unix.SIGCHLD), allow},
		{"thread", on, amd, amd, unix.SYS_CLONE, unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND, allow},
		{"user namespace", on, amd, amd, unix.SYS_CLONE, unix.CLONE_NEWUSER, eperm},
		{"clone3", on, amd, amd, unix.SYS_CLONE3, 0, refuse(unix.ENOSYS)},
		{"ptrace", on, amd, amd, unix.SYS_PTRACE, 0, eperm},
		{"affinity", on, amd, amd, unix.SYS_SCHED_SETAFFINITY, 0, allow},
		{"affinity with a limit", Policy{CPUs: 1}, amd, amd, unix.SYS_SCHED_SETAFFINITY, 0, eperm},
	} {
		if got := interpret(t, program(c.policy, c.made), c.arch, c.nr, c.arg0); got != c.verdict {
			t.Errorf("%s: %#x instead of %#x", c.name, got, c.verdict)
		}
	}
}
