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
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// The defaults of a [Server].
const (
	DefaultStartupTimeout = 300 * time.Second
	DefaultProbeTime      = 30 * time.Second
	DefaultToolTimeout    = 300 * time.Second
	DefaultAnswerTimeout  = 6 * time.Hour
	DefaultIdle           = 120 * time.Second
)

// WorkspaceVariable stands for the path of the process's workspace, in arguments and in
// values of the environment. The path is known only when the workspace is made.
const WorkspaceVariable = "${workspaceFolder}"

// Server is the configured server of a box. After the call of New the caller must not
// change its maps and slices. It has one field for each setting.
type Server struct {
	// Name is the name of the server in errors and logs.
	Name string
	// Command is a program without arguments; no shell runs it. A relative path is
	// relative to Cwd. A name without a slash is looked up in the PATH of the server.
	Command string
	Args    []string
	// Env is added to the environment of the server and overrides it. The box hides
	// values of six bytes and more in all it passes on, in the forms in which programs
	// print them.
	Env map[string]string
	// Principal has the names in `${principal:NAME}` and `${principal_file:NAME}` in
	// values of Env. A process gets its principal's secrets of these names, see
	// Delivery.Secrets. A variable whose secret is missing is left out. Scope must not be
	// ScopeShared.
	Principal []string
	// Secrets names variables of Env whose values are hidden at any length.
	Secrets []string
	// Base is the environment of the runner. The server gets only PATH, HOME, LANG and
	// TMPDIR of it, and the variables of [provision.Network]. The box hides the passwords
	// of proxies in all it passes on.
	Base map[string]string
	// Given has the variables of the image that the server was written for. The server gets
	// all of them, and none is hidden.
	Given map[string]string
	// Unset names variables that the server does not get from Base.
	Unset []string
	// Cwd is the server's working directory, "" for the runner's own.
	Cwd string
	// Provisioner prepares each process, and returns the command, arguments and folder
	// to execute in the place of Command, Args and Cwd. If it is nil, the box executes
	// those.
	Provisioner Provisioner
	// Keeper keeps the workspaces of the Provisioner while the box sleeps. It needs a
	// Provisioner. If Keeper is nil, no workspace is kept.
	Keeper Keeper
	// Kept matters if each session has its own process. With ScopePrincipal each process
	// begins with the workspace that any session of its principal has saved last.
	Kept Scope

	// Scope says which sessions share a process; "" is ScopeSession. The first delivery
	// of any of them starts the process; if one session ends, the process goes on for the
	// others. All of them get the messages that the process sends outside of calls. A
	// client may see what the others do in the process, as far as the server shows it.
	Scope Scope

	// Sandbox makes the sandbox of one process, by the name of the process. placed is
	// the result of the Provisioner, or has only Cwd without one. An error that is a
	// [*sandbox.Error] ends requests with session_create. If Sandbox is nil, the server
	// has the rights of the runner.
	Sandbox func(name string, placed provision.Launch) (*sandbox.Sandbox, error)

	// Mark, if not "", is a text that no other box on the machine uses, such as the path
	// of a folder of its own. Each process gets it in the variable [proc.MarkEnv],
	// followed by a slash and a number. When the process has ended, the box kills every
	// process that still carries its mark, such as a child that left the group.
	// [proc.EndMarked] finds the processes that a killed runner has left. Mark works
	// only on Linux.
	Mark string
	// Guard keeps the box from harming others in a program that has several. It may be nil.
	// Apart starts each process in a session of its own, so that it has no part in the
	// terminal of such a program.
	Guard *guard.Guard
	Apart bool
	// Memory has room for each process of the box before it starts, and ends idle ones when
	// others need theirs. nil: nothing is bounded.
	Memory *guard.Memory
	// MaxProcesses limits the processes at a time, of all sessions; 0 means no limit. At
	// the limit the box stops the process that has been idle longest. If all processes
	// are at work, the box refuses the new one.
	MaxProcesses int
	// Stderr, if not nil, opens a writer for the stderr of a process, by the name of the
	// process. One goroutine at a time writes whole lines to it, with secrets replaced
	// by redact.Hidden. Lines of stdout that were no messages begin with "stdout: ".
	// Lines about the process itself begin with "---". The box ignores its errors, and
	// closes it. If Stderr is nil, the box logs the end of the output with a failure.
	Stderr func(name string) io.WriteCloser

	// Refusals says that the program is a keeper whose network refuses hosts, and says so on
	// [RefusalsFile]. The log has each line of it, and so has the error of a request that was
	// in flight.
	Refusals bool

	// Images, if not nil, keeps the memory of processes while they sleep. The program is then a
	// keeper that has its control socket as [ControlFile]. It needs a Keeper.
	Images *memory.Kept

	// Lists has the box ask each fresh process for its lists, and tell the Sink what they
	// are. The owner of the Sink finds out that the program has changed.
	Lists bool

	// ShowOutput adds output to the errors that clients get: the end of a process's
	// stderr and of its stdout besides messages, or of an install's stderr. Set it on a
	// machine whose clients are its operator. The output of a hosted program may be meant
	// only for the operator.
	ShowOutput bool

	// Era is the protocol that the server was found to speak, "" if it is not known. It
	// saves the box a probe. If it is wrong, the box finds the protocol out again.
	Era bridge.Era

	// StartupTimeout limits the time from the start of a process, with its preparation,
	// to its answer to initialize. Zero means the default.
	StartupTimeout time.Duration
	// ProbeTime limits the time that a process of a server of unknown protocol has to
	// answer server/discover; then another process takes its place. After a sixth of this
	// time the box sends initialize too. Zero means the default.
	ProbeTime time.Duration
	// ToolTimeout limits the time of one tools/call, or any other request, from when the
	// process gets it. Zero means the default, less than zero no limit.
	ToolTimeout time.Duration
	// AnswerTimeout limits the time that the client has to answer a question of a
	// request. That time does not count against ToolTimeout. Zero means the default.
	AnswerTimeout time.Duration
	// Idle is how long the box keeps an idle process. Zero means the default.
	Idle time.Duration
}

// Provisioner puts in place what processes need before they start.
// [provision.Provisioner] implements it.
type Provisioner interface {
	// Provision prepares a process by its name, which is [Scope.Name] of its session. It
	// blocks until it is done, and gives up when ctx ends. tell reports its steps. restore,
	// if it is not nil, fills a new workspace. The error may be a [*provision.Error].
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

// Keeper keeps the workspaces of processes while their box sleeps. name is the name of a
// process, by [Scope.Name]. owner is the name under which a workspace is kept: the name of
// the process, or "principal-" and a hash. Several processes may share an owner of the
// second kind. The box makes the calls for one process one after the other.
type Keeper interface {
	// Restore puts what is kept for owner into the new workspace of a process. It is a
	// [provision.Restore].
	Restore(ctx context.Context, name, owner, workspace string) (names []string, err error)
	// Save keeps the workspace of a process for owner. staged is [provision.Launch.Staged].
	// The process has ended. If Save fails, the kept copy from before must still be there.
	Save(ctx context.Context, name, owner, workspace, staged string) error
	// Leave tells the Keeper that the box removes the workspace of a process. The Keeper
	// keeps its own copy.
	Leave(name string)
	// Forget removes what is kept for owner. The process with that name has ended for
	// good.
	Forget(ctx context.Context, owner string) error
}
