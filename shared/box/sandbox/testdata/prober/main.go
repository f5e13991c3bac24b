// Command prober tries actions that a sandbox should refuse, one action a run. It prints
// the results as lines of name=ok or name=ERROR.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	args := os.Args[2:]
	actions := map[string]func(){
		"reach":      func() { reach(args[0]) },
		"files":      func() { files(args) },
		"hold":       hold,
		"inherited":  inherited,
		"threads":    func() { threads(number(args[0])) },
		"hog":        func() { hog(args[0], number(args[1])) },
		"leave":      leave,
		"schedule":   schedule,
		"cpus":       cpus,
		"privileges": func() { privileges(args) },
		"escape":     escape,
		"sleep":      func() { time.Sleep(time.Hour) },
	}
	actions[os.Args[1]]()
}

func say(name string, err error) {
	result := "ok"
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		result = unix.ErrnoName(errno)
	case err != nil:
		result = err.Error()
	}
	_, _ = fmt.Fprintf(os.Stdout, "%s=%s\n", name, result)
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

// reach tries to connect to a unix socket of another program, with a socket and with a
// pair.
func reach(address string) {
	say("connect", dial("unix", address))
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err == nil {
		err = unix.Connect(pair[0], &unix.SockaddrUnix{Name: address})
	}
	say("send", err)
}

func dial(network, address string) error {
	c, err := (&net.Dialer{}).DialContext(context.Background(), network, address)
	if err == nil {
		_ = c.Close()
	}
	return err
}

// files takes pairs of arguments: an action and a path.
func files(args []string) {
	for i := 0; i+1 < len(args); i += 2 {
		what, path := args[i], args[i+1]
		var err error
		switch what {
		case "read":
			_, err = os.ReadFile(path)
		case "list":
			_, err = os.ReadDir(path)
		case "write":
			err = os.WriteFile(path, []byte("written"), 0o666)
		case "append":
			var f *os.File
			if f, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0); err == nil {
				_ = f.Close()
			}
		case "truncate":
			err = os.Truncate(path, 0)
		case "mkdir":
			err = os.Mkdir(path, 0o777)
		case "remove":
			err = os.Remove(path)
		case "link":
			err = os.Link(path, filepath.Join(os.Getenv("TMPDIR"), "link"))
		case "through":
			link := filepath.Join(os.Getenv("TMPDIR"), "through")
			if err = os.Symlink(path, link); err == nil {
				_, err = os.ReadFile(link)
			}
		case "rename":
			err = os.Rename(path, filepath.Join(os.Getenv("TMPDIR"), "renamed"))
		}
		say(what+" "+filepath.Base(path), err)
	}
}

// hold says that it runs, and waits for the end of its stdin.
func hold() {
	_, _ = fmt.Fprintln(os.Stdout, os.Getpid())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func inherited() {
	for _, pair := range os.Environ() {
		_, _ = fmt.Fprintln(os.Stdout, "env", pair)
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		say("fds", err)
	}
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !own(target) {
			_, _ = fmt.Fprintln(os.Stdout, "fd", e.Name())
		}
	}
	wd, err := os.Getwd()
	say("wd "+wd, err)
	umask := unix.Umask(0)
	sid, err := unix.Getsid(0)
	say(fmt.Sprintf("umask %o leads %v uid %d", umask, sid == os.Getpid() && unix.Getpgrp() == os.Getpid(), os.Getuid()), err)
	groups, err := os.Getgroups()
	say(fmt.Sprintf("groups %v", groups), err)
}

// threads starts n processes that stay, and stops at the first that cannot be started.
func threads(n int) {
	for i := range n {
		cmd := exec.CommandContext(context.Background(), "/proc/self/exe", "sleep")
		if err := cmd.Start(); err != nil {
			_, _ = fmt.Fprintf(os.Stdout, "started=%d\n", i)
			say("next", err)
			return
		}
	}
	_, _ = fmt.Fprintf(os.Stdout, "started=%d\n", n)
}

func cpus() {
	var set unix.CPUSet
	err := unix.SchedGetaffinity(0, &set)
	say(fmt.Sprintf("cpus %d", set.Count()), err)
	for i := range 1024 {
		set.Set(i)
	}
	say("more", unix.SchedSetaffinity(0, &set))
}

// privileges prints its privileges, and tries to get more, by setuid programs and by
// system calls.
func privileges(setuid []string) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		switch name {
		case "CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp", "Groups":
			_, _ = fmt.Fprintf(os.Stdout, "%s=%s\n", name, strings.TrimLeft(strings.TrimSpace(value), "0"))
		}
	}
	for _, path := range setuid {
		out, err := exec.CommandContext(context.Background(), path, "-u").Output()
		say(filepath.Base(path)+" "+strings.TrimSpace(string(out)), err)
	}
	say("setuid", unix.Setresuid(0, 0, 0))
	say("userns", unix.Unshare(unix.CLONE_NEWUSER))
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", "cpus")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	say("clone userns", cmd.Run())
	say("mount", unix.Mount("none", "/mnt", "tmpfs", 0, ""))
	say("chroot", unix.Chroot("."))
	_, err = unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	say("keys", err)
}

// escape leaves a process behind in a session of its own.
func escape() {
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", "sleep")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	_, _ = fmt.Fprintln(os.Stdout, cmd.Process.Pid)
}

// own reports whether Go's runtime, or the listing, has opened a descriptor.
func own(target string) bool {
	return strings.HasPrefix(target, "/proc/") || strings.HasPrefix(target, "/sys/fs/cgroup/") || strings.HasPrefix(target, "anon_inode:")
}

// schedule sets how this thread gets the processor and the disk, by 0 and by its id, which
// could be that of another process.
func schedule() {
	for name, pid := range map[string]int{"own": 0, "named": os.Getpid()} {
		var cpus unix.CPUSet
		_ = unix.SchedGetaffinity(0, &cpus)
		say(name+" priority", unix.Setpriority(unix.PRIO_PROCESS, pid, 19))
		say(name+" scheduler", unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_BATCH, Nice: 19}, 0))
		say(name+" disk", ioprio(pid))
		say(name+" processors", unix.SchedSetaffinity(pid, &cpus))
	}
	say("of the user", unix.Setpriority(unix.PRIO_USER, 0, 19))
}

func ioprio(pid int) error {
	_, _, errno := unix.RawSyscall(unix.SYS_IOPRIO_SET, 1, uintptr(pid), 2<<13|7)
	if errno != 0 {
		return errno
	}
	return nil
}

// hog fills memory of a kind, says so, and waits for its end.
func hog(kind string, mib int) {
	size := mib << 20
	fill := func(mem []byte) {
		for i := 0; i < len(mem); i += os.Getpagesize() {
			mem[i] = 1
		}
	}
	mapped := func(fd int, flags int) []byte {
		mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			panic(err)
		}
		return mem
	}
	switch kind {
	case "shared":
		fill(mapped(-1, unix.MAP_SHARED|unix.MAP_ANONYMOUS))
	case "memfd", "file":
		fd, err := unix.MemfdCreate("hog", 0)
		if kind == "file" {
			fd, err = unix.Open("/dev/shm/dormouse-hog-"+strconv.Itoa(os.Getuid()), unix.O_CREAT|unix.O_RDWR, 0o600)
		}
		for n := 0; err == nil && n < mib; n++ {
			_, err = unix.Write(fd, make([]byte, 1<<20))
		}
		say("filled", err)
		if kind == "file" && err == nil {
			err = unix.Close(fd)
		}
		if err != nil {
			return
		}
	case "children":
		for range 4 {
			cmd := exec.CommandContext(context.Background(), "/proc/self/exe", "hog", "private", strconv.Itoa(mib/4))
			if err := cmd.Start(); err != nil {
				panic(err)
			}
		}
	case "private":
		fill(mapped(-1, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))
	}
	time.Sleep(time.Hour)
}

// leave leaves files where everybody may.
func leave() {
	for _, folder := range []string{"/dev/shm", "/tmp"} {
		say(folder, os.MkdirAll(filepath.Join(folder, "dormouse-left-"+strconv.Itoa(os.Getuid()), "in"), 0o700))
	}
}
