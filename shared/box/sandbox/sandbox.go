// Package sandbox runs an untrusted program with fewer rights than the caller has. It
// needs no privileges for that. It hides the means of the kernel: users, capabilities,
// limits, Landlock and seccomp. It also hides that Go cannot apply them between fork and
// exec.
//
// # The shim
//
//	Sandbox.Start ─fork─▶ this same program, again ─exec─▶ the program
//	      ▲                    │ Enter: applies the policy to itself
//	      └── it is confined ──┘ or what failed
//
// A main that uses [Sandbox.Start] calls [Enter] before anything else. The policy
// reaches the shim in an anonymous file, not in arguments or environment. The program's
// environment may hold secrets, or variables such as LD_PRELOAD, which must have no
// power over a shim that may be root.
//
// # What holds, and where it does not
//
//	promise                          by                     where it is missing
//	no capability, none to be got    no_new_privs, capset   –
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
//	unix sockets of others, but for  seccomp                –
//	  AllSockets
//	System V and POSIX queues and    seccomp                –
//	  shared memory, but for the same
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
// A seccomp filter sees the values of a call but not the memory behind addresses. So it
// cannot tell a unix socket of another program from one of this program. Below AllSockets
// it therefore refuses all unix sockets. It also refuses datagram pairs, because connect
// can give them another peer. It allows stream pairs, because connect on one fails with
// EISCONN. Pipes of Node and the event loops of Python are such pairs.
//
// Neighbours always see the arguments of a program in /proc, so secrets belong into its
// environment. /proc also lists processes and the names of sockets. Landlock cannot
// narrow it to /proc/self: a rule holds for one directory there, and each process that
// the program starts has another. Landlock has no right for the modes, owners and times
// of files. So a program that keeps the runner's user may change these for that user's
// files everywhere; it still cannot read or write the contents.
//
// The sandbox is no virtual machine: a program that breaks the kernel gets out. Tasks of
// their own keep tenants apart. The sandbox separates programs that share a machine or a
// task.
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
	// Sockets says which sockets the program, and everything it starts, may open.
	// Enforced by seccomp.
	Sockets Sockets

	// Workspace and Temp are folders for this program alone: it may read, write and
	// execute everything there. "" means none. Start makes a folder that is missing, but
	// not its parent. It gives the folders to the program's user, and no other user may
	// enter them. If a folder already belongs to that user, Start does not change the
	// owner of files that other users have put into it since. [Sandbox.End] removes Temp.
	Workspace string
	Temp      string
	// Read names files and folders that the program may read and execute besides those of
	// the system, such as the folder where it is installed. Its own executable need not
	// be among them.
	Read []string
	// Write names files and folders that the program may also change, as far as its user
	// may. Their owner stays the same. Landlock enforces this and all the paths above.
	Write []string

	// KeepUser lets the program run as the user of the runner, without the capabilities.
	// It is for programs that work on files of that user. Without KeepUser a runner that
	// is root gives the program a user of its own, the same for the same Workspace.
	KeepUser bool

	// Memory limits the memory of the program and all it starts, in bytes; 0 means no
	// limit. Where there is a cgroup, the kernel ends them when they need more, together and
	// with shared memory, see [Sandbox.Exceeded]. Elsewhere a watch does; what a program
	// takes within a quarter of a second may be more there.
	// RLIMIT_DATA bounds the private memory of one process without a delay: allocation
	// fails. That limit is higher by [Reserved].
	Memory int64
	// Processes limits the processes and threads of the program and all it starts, at a
	// time; 0 means no limit. RLIMIT_NPROC enforces it for a user of its own: for another
	// user it would count all that this user runs. A cgroup enforces it for every user.
	Processes int
	// CPUs is the number of CPUs that the program may use, rounded up; 0 means all.
	// Affinity enforces it, and seccomp keeps the program from changing that.
	CPUs float64

	// Demand names the guards that must hold: [New] refuses the policy if the system
	// cannot enforce one of them. If another guard is missing, the sandbox works without
	// it, and [Sandbox.Lacks] lists it.
	Demand []Guard
}

// Reserved is what RLIMIT_DATA allows a process in addition to its [Policy.Memory], in
// bytes. The kernel counts writable address space when a process reserves it, before any
// of it is memory. V8 reserves 512 MiB for the code that it compiles. From Node 24 on
// that space is writable. A process that reserves nothing can use that much more memory.
const Reserved = 512 << 20

// Sockets says which sockets a program may open.
type Sockets int

// The kinds of sockets. Each kind also allows the kinds before it.
const (
	NoSockets       Sockets = iota // connected pairs of unix stream sockets, between the program and its children
	InternetSockets                // IPv4 and IPv6, and the route netlink, by which programs list interfaces
	AllSockets                     // sockets of every family; so the program can also connect to unix sockets that its user may open
)

// Guard is one protection that a [Policy] asks for.
type Guard string

// The guards. The comment of each names the fields of [Policy] that ask for it. Every
// policy asks for GuardFiles and GuardNeighbours.
const (
	GuardNetwork    Guard = "network"    // NoSockets: the program cannot reach the network
	GuardSockets    Guard = "sockets"    // for Sockets below AllSockets: the program cannot reach servers on unix sockets of this machine
	GuardFiles      Guard = "files"      // the program can open only the system's files, Workspace, Temp, Read and Write
	GuardNeighbours Guard = "neighbours" // the program cannot see memory, environment and descriptors of others
	GuardMemory     Guard = "memory"     // Memory
	GuardProcesses  Guard = "processes"  // Processes
	GuardCPUs       Guard = "cpus"       // CPUs
)

// Lack is a guard that a policy asks for and this system does not have.
type Lack struct {
	Guard Guard
	Why   string // the reason, in words for a person
}

// Support describes what the system has and this program may use.
type Support struct {
	// Limits says that the system has rlimits, affinity and no_new_privs, which means it
	// is Linux.
	Limits bool
	// Landlock is the version of the Landlock ABI, 0 for none.
	Landlock int
	// Seccomp says that the kernel has filters, and this package has one for the
	// architecture.
	Seccomp bool
	// FirstUser and Users are the first id, and the number of ids, from which programs
	// get a user and group. Users is 0 if the runner may not change the user.
	FirstUser, Users uint32
	// Cgroups is the folder in which this program may make cgroups with limits of memory and
	// processes, "" for none.
	Cgroups string
}

// ErrRefused is wrapped in the errors of [New] for a policy that demands a guard that
// the system does not have.
var ErrRefused = errors.New("this machine cannot provide the sandbox that is required")

// Error says that a sandbox could not be made, so the program was not run. An error of
// executing the program itself is not an Error.
type Error struct {
	Step string // the step that failed, such as "landlock"
	Err  error
}

// Error names the step and the cause.
func (e *Error) Error() string { return fmt.Sprintf("sandbox: %s: %v", e.Step, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Sandbox confines one program at a time, with all the programs it starts. Its methods
// are safe for concurrent use.
type Sandbox struct {
	policy  Policy
	support Support
	user    uint32 // 0 for the runner's own
	lacks   []Lack

	watched  sync.Mutex
	stop     chan struct{} // ends the watch of the memory; nil for none
	group    cgroup        // bounds the memory instead of the watch; "" for none
	exceeded atomic.Bool   // the program was ended because of its memory
}

// New makes a sandbox for a policy, on a system with the means in on: the result of
// [Probe], or less. New owns p from then on. Its error is an [*Error], with [ErrRefused]
// or the reason why a value is invalid.
func New(p Policy, on Support) (*Sandbox, error) {
	if err := p.check(); err != nil {
		return nil, &Error{Step: "policy", Err: err}
	}
	s := &Sandbox{policy: p, support: on, lacks: on.Missing(p)}
	var refused []error
	for _, l := range s.lacks {
		if slices.Contains(p.Demand, l.Guard) {
			refused = append(refused, fmt.Errorf("%w: %s: %s", ErrRefused, l.Guard, l.Why))
		}
	}
	if len(refused) > 0 {
		return nil, &Error{Step: "policy", Err: errors.Join(refused...)}
	}
	if on.ownUser(p) {
		s.user = on.userOf(p)
	}
	return s, nil
}

// Lacks lists the guards that the policy asks for and the sandbox works without, for a
// log.
func (s *Sandbox) Lacks() []Lack { return slices.Clone(s.lacks) }

// Exceeded reports whether the program was ended because it used more memory than the
// policy allows.
func (s *Sandbox) Exceeded() bool {
	s.watched.Lock()
	defer s.watched.Unlock()
	return s.exceeded.Load() || s.group.exceeded()
}

// User returns the user and group id of the programs. ok is false if they run as the
// user of the runner.
func (s *Sandbox) User() (id uint32, ok bool) { return s.user, s.user != 0 }

// Environment returns the variables that a program in the sandbox should get if its
// configuration does not set them: TMPDIR and HOME, both Temp. Without Temp it returns
// nil.
func (s *Sandbox) Environment() map[string]string {
	if s.policy.Temp == "" {
		return nil
	}
	return map[string]string{"TMPDIR": s.policy.Temp, "HOME": s.policy.Temp}
}

// Missing lists the guards that a policy asks for and the system does not have.
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

// Owns reports whether an id is one of those that the sandbox gives to programs.
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
		if !(v >= 0) { // NaN too
			return fmt.Errorf("%s is %v, use 0 for no limit", name, v)
		}
	}
	return nil
}
