package box

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/platform/systrap"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	gconfig "gvisor.dev/gvisor/runsc/config"
	gflag "gvisor.dev/gvisor/runsc/flag"
)

func TestMain(m *testing.M) {
	Role() // the test program is also the sentry
	os.Exit(m.Run())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The flags for gVisor are strings, so the compiler does not notice if a version of gVisor lacks
// one.
func TestGVisorHasTheFlagsThatAreGiven(t *testing.T) {
	ofBoot, all := gflag.NewFlagSet("boot", gflag.ContinueOnError), gflag.NewFlagSet("runsc", gflag.ContinueOnError)
	new(sentrycmd.Boot).SetFlags(ofBoot)
	gconfig.RegisterFlags(all)
	for _, name := range []string{"bundle", "attached", "gofer-mount-confs", "total-host-memory", "total-memory", "cpu-num", "spec-fd", "start-sync-fd", "io-fds", "controller-fd", "stdio-fds", "rootfs-upper-tar-fd"} {
		if ofBoot.Lookup(name) == nil {
			t.Errorf("boot has no flag %s", name)
		}
	}
	for name := range flags() {
		if all.Lookup(name) == nil {
			t.Errorf("runsc has no flag %s", name)
		}
	}
	conf, err := settings()
	must(t, err)
	if conf.DirectFS || conf.Network != gconfig.NetworkNone || conf.Platform != "systrap" || strings.Contains(strings.Join(conf.ToFlags(), " "), "debug-log=/") {
		t.Errorf("%v", conf.ToFlags())
	}
}

// A file that a sentry cannot read ends it, some of them only in one start of many.
func TestASentryMayReadTheFilesThatItReads(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "gvisor.dev/gvisor").Output()
	must(t, err)
	literal := regexp.MustCompile(`"(/(?:proc|sys)/[^"]+)"`)
	for _, where := range []string{"platform", "platform/systrap", "../cpuid"} {
		files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "pkg/sentry", where, "*.go"))
		must(t, err)
		if len(files) == 0 {
			t.Errorf("gVisor has no %s", where)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			must(t, err)
			for _, m := range literal.FindAllStringSubmatch(string(text), -1) {
				if !slices.Contains(facts(), m[1]) && !strings.HasSuffix(file, "_test.go") {
					t.Errorf("%s reads %s, which is closed", file, m[1])
				}
			}
		}
	}
}

// The names of the sentry's methods are strings too. A sentry knows each of them, although the
// call itself may fail.
func TestASentryKnowsTheCallsThatAreMade(t *testing.T) {
	empty, err := smallest()
	must(t, err)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(t, err)
	defer func() { _, _ = null.Close(), empty.Close() }()
	const unknown = "containerManager.NotThere"
	root := id
	for method, arg := range map[string]any{
		boot.ContMgrSetNetworkArgs: &boot.CreateLinksAndRoutesArgs{}, boot.ContMgrRootContainerStart: &root, boot.ContMgrWait: new(string), boot.ContMgrWaitPID: &boot.WaitPIDArgs{}, boot.ContMgrSignal: &boot.SignalArgs{}, boot.ContMgrPause: nil,
		boot.ContMgrCheckpoint: &control.SaveOpts{}, boot.ContMgrRestore: &boot.RestoreOpts{}, boot.FsTarRootfsUpperLayer: &control.TarRootfsUpperLayerOpts{}, boot.UsageCollect: &control.MemoryUsageOpts{}, unknown: nil,
	} {
		b, err := Prepare(Spec{Image: empty, Args: []string{"/end"}, Stdio: [3]*os.File{null, null, null}})
		must(t, err)
		err = b.call(method, arg, nil)
		if refused := err != nil && strings.Contains(err.Error(), "unknown method"); refused != (method == unknown) {
			t.Errorf("%s: %v", method, err)
		}
		b.Close()
	}
}

// The sentry remembers what it has seen in a folder only if the folder is fixed.
func TestOnlyFixedFoldersAreRemembered(t *testing.T) {
	hints, err := boot.NewPodMountHints(describe(Spec{Folders: []Folder{{Path: "/usr", ReadOnly: true, Fixed: true}, {Path: "/data", ReadOnly: true}, {Path: "/work"}}}))
	must(t, err)
	if usr := hints.FindMount("/usr"); usr == nil || !usr.IsSandboxLocal() || len(hints.Mounts) != 1 {
		t.Errorf("%+v", hints.Mounts)
	}
}

// The filter of a sentry allows no system call that opens files, connects or executes programs.
func TestTheFilterOfASentry(t *testing.T) {
	rules, _ := config.Rules(config.Options{Platform: new(systrap.Systrap).SeccompInfo()})
	for name, nr := range map[string]uintptr{
		"openat": unix.SYS_OPENAT, "openat2": unix.SYS_OPENAT2, "socket": unix.SYS_SOCKET, "connect": unix.SYS_CONNECT, "bind": unix.SYS_BIND, "execve": unix.SYS_EXECVE, "execveat": unix.SYS_EXECVEAT,
		"mount": unix.SYS_MOUNT, "setns": unix.SYS_SETNS, "unshare": unix.SYS_UNSHARE, "bpf": unix.SYS_BPF, "process_vm_writev": unix.SYS_PROCESS_VM_WRITEV, "pidfd_getfd": unix.SYS_PIDFD_GETFD, "io_uring_setup": unix.SYS_IO_URING_SETUP,
		"unlinkat": unix.SYS_UNLINKAT, "renameat2": unix.SYS_RENAMEAT2, "inotify_add_watch": unix.SYS_INOTIFY_ADD_WATCH, "pidfd_send_signal": unix.SYS_PIDFD_SEND_SIGNAL, "kill": unix.SYS_KILL,
		"sched_setscheduler": unix.SYS_SCHED_SETSCHEDULER, "sched_setattr": unix.SYS_SCHED_SETATTR, "sched_setaffinity": unix.SYS_SCHED_SETAFFINITY, "ioprio_set": unix.SYS_IOPRIO_SET, "prlimit64": unix.SYS_PRLIMIT64, "shmat": unix.SYS_SHMAT,
	} {
		if rules.Has(nr) {
			t.Errorf("a sentry may call %s", name)
		}
	}
	if !rules.Has(unix.SYS_PTRACE) {
		t.Error("it may not call ptrace: then the seal need not close that")
	}
}
