// Package sandbox runs an untrusted program with fewer rights than its caller has. The package
// needs no privileges. It uses what the kernel has for that: users, capabilities, limits, Landlock
// and seccomp. Go cannot apply these between fork and exec, so the package starts a helper
// process, the shim.
//
// # The shim
//
//	Sandbox.Start ─fork─▶ this same program, again ─exec─▶ the program
//	      ▲                    │ Enter: applies the policy to itself
//	      └── it is confined ──┘ or what failed
//
// A main function that uses [Sandbox.Start] must first call [Enter]. The policy reaches the shim
// in an anonymous file, and not in arguments or the environment. The program's environment may
// contain secrets, or variables such as LD_PRELOAD, which must have no effect on a shim that may
// run as root.
//
// # What holds, and where it does not
//
//	promise                          by                     where it is missing
//	no capability, now or later      no_new_privs, capset   –
//	no descriptor, no variable of    the shim               –
//	  the runner; own session
//	a user of its own                a uid by workspace     the runner is not root
//	files: the system read-only,     Landlock (5.13)        what the user may open: with a user of
//	  workspace and temp writable                           its own what is open to everybody
//	sockets: those of Sockets, no    seccomp                –
//	  io_uring; pairs for itself
//	memory, environment and stderr   own user, Landlock     older kernel and not root
//	  of neighbours
//	signals to neighbours            own user, Landlock     kernel before 6.12 and not root
//	unix sockets of others, unless   seccomp                –
//	  AllSockets is set
//	System V and POSIX queues and    seccomp                –
//	  shared memory, likewise
//	limits of neighbours             seccomp                –
//	processes and threads            RLIMIT_NPROC, and a    the runner is not root and has no
//	                                 cgroup where it may    cgroup: it counts all that its user
//	                                 make one               runs
//	memory                           RLIMIT_DATA, with      –
//	                                 Reserved beside it,
//	                                 and a cgroup where it
//	                                 may make one, else a
//	                                 watch
//	whole CPUs                       affinity and seccomp   –
//
// A seccomp filter sees the arguments of a system call, but not the memory to which they point. A
// filter cannot distinguish a unix socket of another program from one of this program. Unless the
// policy allows AllSockets, the filter refuses all unix sockets. The filter also refuses datagram
// pairs, because connect can give one a new peer. The filter allows stream pairs, because connect
// fails on one with EISCONN. Pipes of Node and the event loops of Python are such pairs.
//
// Neighbours, the other programs of the machine, always see the arguments of a program in /proc, so
// secrets belong into its environment. /proc also lists processes and the names of sockets.
// Landlock cannot restrict a program to /proc/self: a rule is about one directory, and each process
// that the program starts has another one. Landlock has no right for the modes, owners and times of
// files. So a program that runs as the runner's user can change these for all files of that user;
// it still cannot read or write their contents.
//
// The sandbox is no virtual machine: a program that exploits the kernel gets out. On AWS each
// tenant has tasks of its own. The sandbox separates programs that share a machine or a task.
//
// Outside Linux nothing is enforced, and [Probe] says so.
package sandbox

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
)

// Policy says what a program may do. The zero Policy allows no sockets and no writing,
// and sets no limits. Paths are absolute.
type Policy struct {
	// Sockets says which sockets the program, and everything that it starts, may open. Seccomp
	// enforces Sockets.
	Sockets Sockets

	// Workspace and Temp are folders for this program alone: it may read, write and execute
	// everything there. "" means none. Start makes a folder that is missing, but not its parent.
	// Start gives the folders to the program's user, and no other user may enter them. If a folder
	// already belongs to that user, Start does not change the owners of the files in it.
	// [Sandbox.End] removes Temp.
	Workspace string
	Temp      string
	// Read names files and folders that the program may read and execute in addition to those of
	// the system, such as the folder where it is installed. Read need not list the program's own
	// file.
	Read []string
	// Write names files and folders that the program may also change, if their modes allow its
	// user to do so. The owner of these files stays the same. Landlock enforces Write and all
	// paths above.
	Write []string

	// KeepUser makes the program run as the user of the runner, without capabilities. KeepUser is
	// for programs that work on files of that user. If KeepUser is not set and the runner is root,
	// the program gets its own user, which is always the same for the same Workspace.
	KeepUser bool

	// Memory limits the memory of the program and all that it starts, in bytes; 0 means no limit.
	// If there is a cgroup, the kernel kills them when they use more, including shared memory; see
	// [Sandbox.Exceeded]. Without a cgroup, the Sandbox adds up their memory four times a second,
	// and kills them. In addition, RLIMIT_DATA makes allocations fail at once if a single process
	// has more private memory than Memory plus [Reserved].
	Memory int64
	// Processes limits how many processes and threads of the program, and of all that it starts,
	// exist at a time; 0 means no limit. A cgroup enforces Processes for any user. RLIMIT_NPROC,
	// which counts all processes of a user, does so only if the program has its own user.
	Processes int
	// CPUs is the number of CPUs that the program may use, rounded up; 0 means all. CPU affinity
	// enforces CPUs, and seccomp keeps the program from changing its affinity.
	CPUs float64

	// Demand names the guards without which [New] refuses the policy. If the system lacks another
	// guard, the sandbox works without that guard, and [Sandbox.Lacks] lists it.
	Demand []Guard
}

// Reserved is how many bytes RLIMIT_DATA allows a process in addition to its [Policy.Memory]. The
// kernel counts writable address space when a process reserves it, even if no memory is used for
// it yet. V8 reserves 512 MiB for compiled code, which is writable since Node 24. A process that
// reserves nothing can use 512 MiB more than Memory.
const Reserved = 512 << 20

// Sockets says which sockets a program may open.
type Sockets int

// The kinds of sockets. Each kind also allows the kinds before it.
const (
	NoSockets       Sockets = iota // no sockets, except connected pairs of unix stream sockets between the program and its children
	InternetSockets                // also IPv4 and IPv6, and the route netlink, by which programs list network interfaces
	AllSockets                     // sockets of every family, so the program can also connect to unix sockets that its user may open
)

// Guard is one protection that a [Policy] asks for.
type Guard string

// The guards, each with the field of [Policy] that asks for it. Every policy asks for GuardFiles and
// GuardNeighbours.
const (
	GuardNetwork    Guard = "network"    // the program cannot reach the network (Sockets is NoSockets)
	GuardSockets    Guard = "sockets"    // the program cannot reach unix sockets of other programs (Sockets is not AllSockets)
	GuardFiles      Guard = "files"      // the program can open only the system's files, Workspace, Temp, Read and Write
	GuardNeighbours Guard = "neighbours" // the program cannot see memory, environment and descriptors of others
	GuardMemory     Guard = "memory"     // the program cannot use more memory than Policy.Memory
	GuardProcesses  Guard = "processes"  // the program cannot have more processes than Policy.Processes
	GuardCPUs       Guard = "cpus"       // the program cannot use more CPUs than Policy.CPUs
)

// Lack is a guard that a policy asks for and this system does not have.
type Lack struct {
	Guard Guard
	Why   string // the reason, in words for a person
}

// Support describes which means of protection the system has and this program may use.
type Support struct {
	// Limits says that the system has rlimits, CPU affinity and no_new_privs. Limits is true on
	// Linux only.
	Limits bool
	// Landlock is the version of the Landlock ABI, 0 for none.
	Landlock int
	// Seccomp says that the kernel has seccomp filters, and that this package has a filter for the
	// architecture.
	Seccomp bool
	// Programs get a user and a group from a range of ids. FirstUser is the first id, and Users
	// the number of ids. Users is 0 if the runner may not change the user.
	FirstUser, Users uint32
	// Cgroups is the folder in which this program may make cgroups that limit memory and
	// processes, "" for none.
	Cgroups string
}

// ErrRefused is wrapped in the error of [New] if the policy demands a guard that the system lacks.
var ErrRefused = errors.New("this machine cannot provide the sandbox that is required")

// Error says that a sandbox could not be made, so the program was not started. If only the exec of
// the program fails, the error is not an Error.
type Error struct {
	Step string // the step that failed, such as "landlock"
	Err  error
}

// Error names the step and the cause.
func (e *Error) Error() string { return fmt.Sprintf("sandbox: %s: %v", e.Step, e.Err) }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Sandbox confines one program at a time, with all the programs it starts. Its methods
// are safe for concurrent use.
type Sandbox struct {
	policy  Policy
	support Support
	user    uint32 // the program's own user, 0 if it runs as the runner's user
	lacks   []Lack

	watched  sync.Mutex
	stop     chan struct{} // closing it ends the method watch; nil if that does not run
	group    cgroup        // limits the memory in the place of watch; "" for none
	exceeded atomic.Bool   // the program was killed because it used too much memory
}

// New makes a sandbox for a policy. The argument support is the result of [Probe], or only a part
// of it. New owns p from then on. The error is an [*Error], which wraps [ErrRefused] or says which
// value is invalid.
func New(p Policy, support Support) (*Sandbox, error) {
	if err := p.check(); err != nil {
		return nil, &Error{Step: "policy", Err: err}
	}
	s := &Sandbox{policy: p, support: support, lacks: support.Missing(p)}
	var refused []error
	for _, l := range s.lacks {
		if slices.Contains(p.Demand, l.Guard) {
			refused = append(refused, fmt.Errorf("%w: %s: %s", ErrRefused, l.Guard, l.Why))
		}
	}
	if len(refused) > 0 {
		return nil, &Error{Step: "policy", Err: errors.Join(refused...)}
	}
	if support.ownUser(p) {
		s.user = support.userOf(p)
	}
	return s, nil
}

// Lacks returns the guards that the policy asks for and the sandbox does not have, for a log.
func (s *Sandbox) Lacks() []Lack { return slices.Clone(s.lacks) }

// Exceeded reports whether the program was killed because it used more memory than the policy
// allows.
func (s *Sandbox) Exceeded() bool {
	s.watched.Lock()
	defer s.watched.Unlock()
	return s.exceeded.Load() || s.group.exceeded()
}

// Environment returns the variables that a program in the sandbox should get if its configuration
// does not set them: TMPDIR and HOME, both with the path of Temp. Environment returns nil if there
// is no Temp.
func (s *Sandbox) Environment() map[string]string {
	if s.policy.Temp == "" {
		return nil
	}
	return map[string]string{"TMPDIR": s.policy.Temp, "HOME": s.policy.Temp}
}

// Missing returns the guards that a policy asks for and the system lacks.
func (s Support) Missing(p Policy) []Lack {
	own := s.ownUser(p)
	var lacks []Lack
	need := func(asked, has bool, g Guard, why string) {
		if asked && !has {
			lacks = append(lacks, Lack{Guard: g, Why: why})
		}
	}
	const elsewhere = "this is not linux"
	const filters = "the kernel has no seccomp filters, or there is none for this architecture"
	need(p.Sockets < InternetSockets, s.Seccomp, GuardNetwork, filters)
	need(p.Sockets < AllSockets, s.Seccomp, GuardSockets, filters)
	need(true, s.Landlock > 0, GuardFiles, "the kernel has no landlock, it needs linux 5.13 with landlock among its lsm")
	need(true, s.Landlock > 0 || own, GuardNeighbours, "the kernel has no landlock and the program has no user of its own, which needs a runner that is root")
	need(p.Memory > 0, s.Limits, GuardMemory, elsewhere)
	need(p.Processes > 0, own || s.Cgroups != "", GuardProcesses, "the program has no user of its own, which needs a runner that is root, and no cgroup was left to the runner: a limit would count all that the user runs")
	need(p.CPUs > 0, s.Limits && s.Seccomp, GuardCPUs, "the kernel has no seccomp filters: the program could take more again")
	return lacks
}

// Owns reports whether a user id is in the range from which the sandbox gives users to programs.
func (s Support) Owns(user uint32) bool {
	return s.Users > 0 && user >= s.FirstUser && user-s.FirstUser < s.Users
}

func (s Support) ownUser(p Policy) bool { return s.Users > 0 && !p.KeepUser }

func (p Policy) check() error {
	paths := append([]string{p.Workspace, p.Temp}, append(slices.Clone(p.Read), p.Write...)...)
	for i, path := range paths {
		switch {
		case path == "" && i < 2:
		case !filepath.IsAbs(path):
			return fmt.Errorf("path %q is not absolute", path)
		case path != filepath.Clean(path):
			return fmt.Errorf("path %q has parts that lead back, use %s", path, filepath.Clean(path))
		case path == "/" && i < 2:
			return errors.New("workspace and temp cannot be /")
		}
	}
	if p.Sockets < NoSockets || p.Sockets > AllSockets {
		return fmt.Errorf("sockets is %d, use one of the constants", p.Sockets)
	}
	for name, v := range map[string]float64{"memory": float64(p.Memory), "processes": float64(p.Processes), "cpus": p.CPUs} {
		if !(v >= 0) { // true for NaN, too
			return fmt.Errorf("%s is %v, use 0 for no limit", name, v)
		}
	}
	return nil
}
