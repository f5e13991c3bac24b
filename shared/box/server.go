package box

import (
	"cmp"
	"context"
	"io"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/box/memory"
	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/redact"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// The values that [New] uses for fields of a [Server] that are zero.
const (
	DefaultStartupTimeout = 300 * time.Second
	DefaultProbeTime      = 30 * time.Second
	DefaultToolTimeout    = 300 * time.Second
	DefaultAnswerTimeout  = 6 * time.Hour
	DefaultIdle           = 120 * time.Second
)

// WorkspaceVariable stands for the path of the process's workspace, in Args and in values of Env.
const WorkspaceVariable = "${workspaceFolder}"

// Server configures the server of a box. The caller must not change its maps and slices after the
// call of New.
type Server struct {
	// Name is the name of the server in errors and logs.
	Name string
	// Command is a program without arguments; no shell runs it. A relative path is
	// relative to Cwd. A name without a slash is looked up in the PATH of the server.
	Command string
	Args    []string
	// Env is added to the environment of the server and overrides it. The box removes values of
	// six bytes and more from all that it passes on, in each of the forms in which programs print
	// them.
	Env map[string]string
	// Principal has the names that occur in values of Env as `${principal:NAME}` or
	// `${principal_file:NAME}`. A process gets the secrets with these names from the Secrets of a
	// [frame.Deliver]. A variable whose secret is missing is left out. Scope must not be ScopeShared.
	Principal []string
	// Secrets names variables of Env whose values are removed from output even if they are short.
	Secrets []string
	// Base is the environment of the runner. The server gets only PATH, HOME, LANG, TMPDIR and the
	// variables of [provision.Network] from it. The box removes passwords of proxies from all that
	// it passes on.
	Base map[string]string
	// Given has the variables of the container image that the server was written for. None of them
	// is treated as a secret.
	Given map[string]string
	// Unset names variables that the server does not get from Base.
	Unset []string
	// Cwd is the server's working directory, "" for the runner's own.
	Cwd string
	// Provisioner prepares each process, and returns the command, arguments and folder to use in
	// the place of Command, Args and Cwd. If it is nil, the box uses those three.
	Provisioner Provisioner
	// Keeper, which needs a Provisioner, stores workspaces while the box sleeps. If Keeper is nil,
	// no workspace is stored.
	Keeper Keeper
	// Kept is used only if each session has its own process. If it is ScopePrincipal, each process
	// begins with the workspace that was saved last for any session of its principal.
	Kept Scope

	// Scope says which sessions share a process; "" means ScopeSession. If one session ends, the
	// process goes on for the others. All sessions get the messages that the process sends outside
	// of calls. A client may see what others do in the process, as far as the server shows it.
	Scope Scope

	// Sandbox makes the sandbox of one process. The argument name is that of the process; placed
	// is what the Provisioner has prepared; without a Provisioner only its Cwd is set. If the
	// error is a [*sandbox.Error], requests end with the phase session_create. If Sandbox is nil,
	// the server has the rights of the runner.
	Sandbox func(name string, placed provision.Launch) (*sandbox.Sandbox, error)

	// Mark, if not "", is a text that no other box on the machine uses, such as the path of a
	// folder of the box. Each process gets it in the variable [proc.MarkEnv], followed by a slash
	// and a number. When the process has ended, the box kills every process that still has this
	// value, such as a child that left the process group. [proc.EndMarked] finds the processes
	// that a killed runner has left. Mark works only on Linux.
	Mark string
	// Guard protects a program that runs several boxes from the faults of one box. Each process then
	// has an OS session of its own, so that it has no access to the terminal of the program. Guard may
	// be nil.
	Guard *guard.Guard
	// Memory bounds the memory of several boxes: each process waits for room before it starts, and
	// idle processes end if others need their room. If it is nil, nothing is bounded.
	Memory *guard.Memory
	// MaxProcesses limits how many processes run at a time, for all sessions; 0 means no limit. At
	// the limit the box stops the process that has been idle longest. If all processes are busy,
	// the box refuses requests that need a new one.
	MaxProcesses int
	// Stderr, if not nil, opens a writer for the stderr of the process with this name. One
	// goroutine at a time writes whole lines, in which secrets are replaced by [redact.Hidden].
	// Lines of stdout that were no messages begin with "stdout: ", and lines about the process
	// itself with "---". The box ignores errors of the writer, and closes it. If Stderr is nil,
	// the box logs the end of the output when the process fails.
	Stderr func(name string) io.WriteCloser

	// Refusals says that the program is a keeper (see package memory) that reports on
	// [RefusalsFile] which hosts its network refuses.
	Refusals bool

	// Images, if not nil, stores the memory of processes while they sleep. The program must then
	// be a keeper with its control socket as [ControlFile]. Images needs a Keeper.
	Images *memory.Kept
	// Code, if not nil, returns a digest of the files that the process is started from. A memory with
	// another digest is not used.
	Code func() string

	// Lists makes the box ask each new process for its lists, and pass a fingerprint of them to
	// [Sink].Status. With it the Sink finds out that the program of the server has changed.
	Lists bool

	// ShowOutput adds output to the errors for clients: the end of a process's stderr and of its
	// stdout lines that were no messages, or the end of an install's stderr. Set it only if the
	// operator of the machine is its only user, because others must not see what a server prints.
	ShowOutput bool

	// Era is the protocol version or versions that the server was found to speak before, "" if
	// that is not known. If Era is set, the box need not try server/discover. The box finds out if
	// Era is wrong.
	Era wire.Era

	// StartupTimeout limits the time from the start of a process, including its preparation, until
	// it has answered initialize. Zero means the default.
	StartupTimeout time.Duration
	// ProbeTime limits how long a server of unknown protocol may take to answer server/discover.
	// After a sixth of this time the box also sends initialize. After ProbeTime, another process
	// takes the place of the silent one. Zero means the default.
	ProbeTime time.Duration
	// ToolTimeout limits the time of one request, such as a tools/call, from when it is sent to
	// the process. Zero means the default, less than zero no limit.
	ToolTimeout time.Duration
	// AnswerTimeout limits the time that the client has to answer a question of a request. The
	// time for an answer does not count against ToolTimeout. Zero means the default.
	AnswerTimeout time.Duration
	// Idle is how long the box keeps an idle process; zero means the default.
	Idle time.Duration
}

// Provisioner prepares what a process needs before it starts. [provision.Provisioner] implements
// it.
type Provisioner interface {
	// Provision prepares the process with this name, which is the [Scope.Name] of its session. It
	// calls tell for each step. The function restore, if not nil, fills a new workspace. The error
	// may be a [*provision.Error].
	Provision(ctx context.Context, name string, tell func(provision.Progress), restore provision.Restore) (provision.Launch, error)
	// Remove deletes the files of a process whose session has ended.
	Remove(name string) error
}

func (s Server) withDefaults() Server {
	s.ProbeTime = cmp.Or(s.ProbeTime, DefaultProbeTime)
	s.StartupTimeout = cmp.Or(s.StartupTimeout, DefaultStartupTimeout)
	s.ToolTimeout = cmp.Or(s.ToolTimeout, DefaultToolTimeout)
	s.AnswerTimeout = cmp.Or(s.AnswerTimeout, DefaultAnswerTimeout)
	s.Idle = cmp.Or(s.Idle, DefaultIdle)
	return s
}

func (s Server) log(name string, hide *redact.Redactor) *proc.Log {
	if s.Stderr == nil {
		return nil
	}
	return proc.NewLog(s.Stderr(name), hide)
}

// Keeper stores the workspaces of processes while their box sleeps. The argument name is that of a
// process, as [Scope.Name] returns it. The argument owner is the name under which a workspace is
// stored: that of the process, or "principal-" and a hash if several processes may share the
// workspace. The box makes one call at a time for each process.
type Keeper interface {
	// Restore fills the new workspace of a process with what is stored for owner. The results are
	// those of a [provision.Restore].
	Restore(ctx context.Context, name, owner, workspace string) (names []string, err error)
	// Save stores the workspace of a process, which has ended, for owner. The argument staged is a
	// file that lists what the Provisioner has put into the workspace, "" if nothing. If Save
	// fails, what was stored before must still be there.
	Save(ctx context.Context, name, owner, workspace, staged string) error
	// Leave tells the Keeper that the box removes the workspace of a process from this machine.
	Leave(name string)
	// Forget deletes what is stored for owner, after its process has ended for good.
	Forget(ctx context.Context, owner string) error
}
