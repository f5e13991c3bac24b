// Package sandbox runs a program that is not trusted, with less than the rights of
// who runs it and without needing privileges for that. It hides what the kernel
// has for it: users, capabilities, limits, Landlock, seccomp, and that Go cannot
// apply them between fork and exec.
//
// # The shim
//
//	Sandbox.Start ─fork─▶ this same program, again ─exec─▶ the program
//	      ▲                    │ Enter: applies the policy to itself
//	      └── it is confined ──┘ or what failed
//
// A main that uses [Sandbox.Start] calls [Enter] before anything else. The policy
// reaches the shim in an anonymous file, not in arguments or environment: those of
// the program may hold secrets, or variables such as LD_PRELOAD that must have no
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
//	processes and threads            RLIMIT_NPROC           the runner is not root: it counts
//	                                                        all that its user runs
//	memory                           RLIMIT_DATA            counted for each process by itself,
//	                                                        memory it shares is not counted
//	whole CPUs                       affinity and seccomp   –
//	open files, size of a file,      rlimits                –
//	  CPU time
//
// A seccomp filter sees the values of a call and no address, so it cannot tell a unix
// socket of others from one of the program. It therefore refuses to make any, and with
// them datagram pairs, which can be connected anew. Stream pairs cannot: connect on
// one is EISCONN. Pipes of Node and the event loops of Python are such pairs.
//
// Neighbours always see the arguments of a program in /proc: secrets belong into its
// environment. /proc also lists processes and the names of sockets. Landlock cannot
// narrow it to /proc/self: a rule holds for one directory there, and each process that
// the program starts has another. A program that keeps the runner's user may change
// the modes, owners and times of that user's files everywhere, for Landlock has no
// right for these; it still cannot read or write what is in them.
//
// It is no virtual machine: whoever breaks the kernel is out. Tenants are kept apart
// by tasks of their own; the sandbox is for what shares a machine or a task.
//
// Outside Linux nothing is enforced, and [Probe] says so.
package sandbox

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"
)

// Policy is what a program may do. The zero Policy allows no sockets and no writing,
// and sets no limits. Paths are absolute.
type Policy struct {
	// Sockets says which sockets the program, and everything it starts, may open.
	// Enforced by seccomp.
	Sockets Sockets

	// Workspace and Temp are folders that the program alone has: it may read, write
	// and execute what is there. They are made where they are missing (their parents
	// are not), belong to its user, and are closed to others. "" for none. A folder
	// that belongs to its user already is taken for done: what was put into it by
	// somebody else since is not handed over. [Sandbox.End] removes Temp.
	Workspace string
	Temp      string
	// Read names files and folders it may read and execute beside those of the
	// system, such as where it is installed. Its own executable needs no mention.
	Read []string
	// Write names files and folders it may change too, as far as its user may: their
	// owner stays who it is. Enforced, like all the above, by Landlock.
	Write []string

	// KeepUser leaves the program the user of the runner, without the capabilities.
	// That is for programs which work on files of that user. Without it a runner that
	// is root gives the program a user of its own, the same for the same Workspace.
	KeepUser bool

	// Memory is how many bytes of private memory one process may have, 0 for any
	// number. Enforced by RLIMIT_DATA: allocation fails, as if there was no more.
	// Address space that is only reserved does not count.
	Memory int64
	// Processes is how many processes and threads the program and all it starts may
	// have at a time, 0 for any number. Enforced by RLIMIT_NPROC, for a user of its
	// own only: for any other it would count what else that user runs.
	Processes int
	// CPUs is how many CPUs it may use, rounded up to whole ones, 0 for all. Enforced
	// by affinity, which seccomp keeps it from changing.
	CPUs float64
	// OpenFiles is how many descriptors one process may have, 0 for as many as the
	// runner. Enforced by RLIMIT_NOFILE.
	OpenFiles int
	// FileSize is how many bytes a file may grow to, 0 for any size. Enforced by
	// RLIMIT_FSIZE: the writer gets SIGXFSZ or EFBIG.
	FileSize int64
	// CPUTime is how long one process may compute, in whole seconds rounded up, 0 for
	// any time. Enforced by RLIMIT_CPU: SIGXCPU, then SIGKILL a second later.
	CPUTime time.Duration

	// Demand names what must hold: [New] refuses the policy where the system cannot
	// enforce it. What is not demanded is left out there, and is in [Sandbox.Lacks].
	Demand []Guard
}

// Sockets says which sockets a program may open.
type Sockets int

// The sockets, each with those before it.
const (
	NoSockets       Sockets = iota // connected pairs of unix streams, between a program and what it starts
	InternetSockets                // IPv4 and IPv6, and the netlink of routes, by which programs list interfaces
	AllSockets                     // of every family: the program reaches whatever serves its user
)

// Guard is one thing a [Policy] asks for.
type Guard string

// The guards. Each is asked for by the fields of [Policy] that it names; the two
// about others are always.
const (
	GuardNetwork    Guard = "network"    // NoSockets: nothing on the internet
	GuardSockets    Guard = "sockets"    // no AllSockets: nothing that serves on this machine's own sockets
	GuardFiles      Guard = "files"      // Workspace, Temp, Read and Write are all it can open
	GuardNeighbours Guard = "neighbours" // memory, environment and descriptors of other programs
	GuardMemory     Guard = "memory"     // Memory
	GuardProcesses  Guard = "processes"  // Processes
	GuardCPUs       Guard = "cpus"       // CPUs
	GuardLimits     Guard = "limits"     // OpenFiles, FileSize, CPUTime
)

// Lack is a guard that a policy asks for and this system does not have.
type Lack struct {
	Guard Guard
	Why   string // for a person
}

// Support is what the system has, and this program may use.
type Support struct {
	// Limits says that rlimits, affinity and no_new_privs are there: it is Linux.
	Limits bool
	// Landlock is the version of its interface, 0 for none.
	Landlock int
	// Seccomp says that there are filters, and that we have one for this architecture.
	Seccomp bool
	// FirstUser and Users are the range of user and group ids that programs may get
	// one of. None where the runner may not change the user.
	FirstUser, Users uint32
}

// ErrRefused is wrapped by the errors of [New] for a policy that demands what the
// system does not have.
var ErrRefused = errors.New("the sandbox that is demanded cannot be had here")

// Error says that a sandbox could not be made, and so the program was not run. That
// the program itself cannot be executed is no such error.
type Error struct {
	Step string // what was being done, such as "landlock"
	Err  error
}

// Error says at which step it was, and what happened.
func (e *Error) Error() string { return fmt.Sprintf("sandbox: %s: %v", e.Step, e.Err) }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Sandbox is a place for one program at a time, and all the programs it starts. Its
// methods may be called by several goroutines.
type Sandbox struct {
	policy  Policy
	support Support
	user    uint32 // 0: that of the runner
	lacks   []Lack
}

// New makes a sandbox with the policy, on a system that has what on says, which is
// what [Probe] found or less. It takes the policy over. The error is an [*Error], with
// [ErrRefused] in it or a value that makes no sense.
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

// Lacks gives what the policy asks for and this sandbox does without, for a log.
func (s *Sandbox) Lacks() []Lack { return slices.Clone(s.lacks) }

// User gives the user and group id of the programs, ok only if they have one of
// their own.
func (s *Sandbox) User() (id uint32, ok bool) { return s.user, s.user != 0 }

// Environment gives the variables that belong to the sandbox: where temporary files
// and what a program keeps for its user are. A program should get them unless it
// was told otherwise. Nothing without a Temp.
func (s *Sandbox) Environment() map[string]string {
	if s.policy.Temp == "" {
		return nil
	}
	return map[string]string{"TMPDIR": s.policy.Temp, "HOME": s.policy.Temp}
}

// Missing gives what a policy asks for and the system does not have.
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
	need(p.Processes > 0, own, GuardProcesses, "the program has no user of its own, which needs a runner that is root: a limit would count all that the user runs")
	need(p.CPUs > 0, s.Limits && s.Seccomp, GuardCPUs, "the kernel has no seccomp filters: the program could take more again")
	need(p.OpenFiles > 0 || p.FileSize > 0 || p.CPUTime > 0, s.Limits, GuardLimits, elsewhere)
	return lacks
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
	for name, v := range map[string]float64{
		"memory": float64(p.Memory), "processes": float64(p.Processes), "cpus": p.CPUs, "open files": float64(p.OpenFiles),
		"file size": float64(p.FileSize), "cpu time": float64(p.CPUTime),
	} {
		if !(v >= 0) { // NaN too
			return fmt.Errorf("%s is %v, use 0 for no limit", name, v)
		}
	}
	return nil
}
