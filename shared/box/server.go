package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/redact"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/bridge"
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

// Server is the configured server of a box. New takes it over: the caller must not
// change its maps and slices any more. It has one field for each setting.
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
	// Secrets names variables of Env whose values are hidden at any length.
	Secrets []string
	// Base is the environment of the runner. The server gets only PATH, HOME, LANG and
	// TMPDIR of it.
	Base map[string]string
	// Cwd is the server's working directory, "" for the runner's own.
	Cwd string
	// Provisioner prepares each process, and returns the command, arguments and folder
	// to execute in the place of Command, Args and Cwd. If it is nil, the box executes
	// those.
	Provisioner Provisioner
	// Keeper keeps the workspaces of the Provisioner while the box sleeps, so it needs
	// one. Nil keeps none.
	Keeper Keeper
	// Kept, for processes of one session, is ScopePrincipal if each is to begin with the
	// workspace that a session of its principal has saved last.
	Kept Scope

	// Scope says which sessions share a process; "" is ScopeSession. The first delivery
	// of any of them starts the process; the end of one session leaves it to the others.
	// All of them get its messages outside of calls. A client may see what the others do
	// in the process, as far as the server shows it.
	Scope Scope

	// Sandbox makes the sandbox of one process, by the name of the process. placed is
	// the result of the Provisioner, or has only Cwd without one. An error that is a
	// [*sandbox.Error] ends requests with session_create. If Sandbox is nil, the server
	// has the rights of the runner.
	Sandbox func(process string, placed provision.Launch) (*sandbox.Sandbox, error)

	// Mark, if not "", is a text that no other box on the machine uses, such as the path
	// of a folder of its own. Each process gets it in the variable [proc.MarkEnv],
	// followed by a slash and a number. When the process has ended, the box kills every
	// process that still carries its mark, such as a child that left the group.
	// [proc.EndMarked] finds the processes that a killed runner has left. Mark works
	// only on Linux.
	Mark string
	// MaxProcesses limits the processes at a time, of all sessions; 0 means no limit. At
	// the limit the box stops the process that has been idle longest. If all are at
	// work, it refuses the new one.
	MaxProcesses int
	// Stderr, if not nil, opens a writer for the stderr of a process, by the name of the
	// process. One goroutine at a time writes whole lines to it, with secrets replaced
	// by redact.Hidden. Lines of stdout that were no messages begin with "stdout: ".
	// Lines about the process itself begin with "---". The box ignores its errors, and
	// closes it. If Stderr is nil, the box logs the end of the output with a failure.
	Stderr func(process string) io.WriteCloser

	// ShowOutput lets clients see the end of stderr, and of the stdout beside messages,
	// of a process or its install in errors. Set it on a machine whose clients are its
	// operator. The output of a hosted program may be meant only for the operator.
	ShowOutput bool

	// Era is the protocol that the server was found to speak, "" if it is not known. It
	// saves the box a probe. If it is wrong, the box finds the protocol out again.
	Era bridge.Era

	// StartupTimeout limits the time from the start of a process, with its preparation,
	// to its answer to initialize. Zero means the default.
	StartupTimeout time.Duration
	// ProbeTime limits the time that a process of a server of unknown protocol has to
	// answer server/discover; then another process takes its place. After a sixth of it
	// the box sends initialize too. Zero means the default.
	ProbeTime time.Duration
	// ToolTimeout limits the time of one tools/call, or any other request, from when the
	// process gets it. Zero means the default, less than zero no limit.
	ToolTimeout time.Duration
	// AnswerTimeout limits the time that the client has to answer a question of a
	// request. ToolTimeout stands still meanwhile. Zero means the default.
	AnswerTimeout time.Duration
	// Idle is how long the box keeps an idle process. Zero means the default.
	Idle time.Duration
}

// Provisioner puts in place what processes need before they start. A
// [provision.Provisioner] is one.
type Provisioner interface {
	// Provision prepares a process by its name, which is [Scope.Name] of its session. It
	// blocks until it is done, and gives up when ctx ends. tell reports its steps. Its
	// error may be a [*provision.Error].
	Provision(ctx context.Context, process string, tell func(provision.Progress)) (provision.Launch, error)
	// Remove deletes what was made for a process of a session that has ended.
	Remove(process string) error
}

func (s Server) withDefaults() Server {
	if s.ProbeTime <= 0 {
		s.ProbeTime = DefaultProbeTime
	}
	if s.StartupTimeout <= 0 {
		s.StartupTimeout = DefaultStartupTimeout
	}
	if s.ToolTimeout == 0 {
		s.ToolTimeout = DefaultToolTimeout
	}
	if s.AnswerTimeout <= 0 {
		s.AnswerTimeout = DefaultAnswerTimeout
	}
	if s.Idle <= 0 {
		s.Idle = DefaultIdle
	}
	return s
}

// environment returns the environment of the server: four variables that most programs
// need, and the configured ones. The runner's own environment stays out, because it
// holds tokens.
func (s Server) environment() map[string]string {
	tmp := s.base("TMPDIR", "/tmp")
	env := map[string]string{
		"PATH":   s.base("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
		"HOME":   s.base("HOME", tmp), // package runners write their caches there
		"LANG":   s.base("LANG", "C.UTF-8"),
		"TMPDIR": tmp,
	}
	for name, value := range s.Env {
		env[name] = value
	}
	return env
}

// staged returns the server as it is to be started after its preparation.
func (s Server) staged(l provision.Launch) Server {
	path := s.environment()["PATH"]
	s.Command, s.Args, s.Cwd = l.Command, slices.Clone(l.Args), l.Cwd
	env := map[string]string{}
	maps.Copy(env, s.Env)
	maps.Copy(env, l.Env)
	if l.Workspace != "" {
		for i, arg := range s.Args {
			s.Args[i] = strings.ReplaceAll(arg, WorkspaceVariable, l.Workspace)
		}
		for name, value := range env {
			env[name] = strings.ReplaceAll(value, WorkspaceVariable, l.Workspace)
		}
	}
	if len(l.Path) > 0 {
		env["PATH"] = strings.Join(append(slices.Clone(l.Path), path), ":")
	}
	s.Env = env
	return s
}

func (s Server) base(name, otherwise string) string {
	if v := s.Base[name]; v != "" {
		return v
	}
	return otherwise
}

// launch is what the operating system needs to start the server.
type launch struct {
	proc.Command
	keep string // the workspace to save when the process has ended, "" for none

	unrun []string // packages whose install scripts were not run
}

// lacks describes the first argument that looks like a script and does not exist, and
// the folder in which it should be. It explains why a server ended at once. Only the
// server knows whether an argument is a file.
func (l launch) lacks() string {
	for _, arg := range l.Args[1:] {
		if !slices.Contains([]string{".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".rb", ".jar"}, filepath.Ext(arg)) || strings.HasPrefix(arg, "-") {
			continue
		}
		file, dir := arg, cmp.Or(l.Dir, ".")
		if !filepath.IsAbs(arg) {
			file = filepath.Join(dir, arg)
		}
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			return ""
		}
		if file, err := filepath.Abs(file); err == nil {
			return fmt.Sprintf("; there is no %s in %s", filepath.Base(file), filepath.Dir(file))
		}
	}
	return ""
}

// launch resolves the command in the server's own environment. Its error, if the server
// cannot be started, is written for the user.
func (s Server) launch() (launch, error) {
	if s.Cwd != "" {
		if info, err := os.Stat(s.Cwd); err != nil {
			return launch{}, fmt.Errorf("cwd of the server: %w", err)
		} else if !info.IsDir() {
			return launch{}, fmt.Errorf("cwd of the server: %s is not a directory", s.Cwd)
		}
	}
	env := s.environment()
	path, err := lookPath(s.Command, env["PATH"], s.Cwd)
	if err != nil {
		return launch{}, err
	}
	l := launch{Command: proc.Command{Path: path, Args: append([]string{s.Command}, s.Args...), Dir: s.Cwd}}
	for name, value := range env {
		l.Env = append(l.Env, name+"="+value)
	}
	slices.Sort(l.Env)
	return l, nil
}

// lookPath finds a program as execvp does, but in the given path and directory.
func lookPath(command, path, dir string) (string, error) {
	if command == "" {
		return "", errors.New("command of the server is empty")
	}
	if strings.Contains(command, "/") {
		file := command
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		if err := executable(file); err != nil {
			return "", fmt.Errorf("command %s: %w", command, err)
		}
		return filepath.Abs(file)
	}
	var refused error
	for _, in := range filepath.SplitList(path) {
		if !filepath.IsAbs(in) {
			continue // programs are not looked up in the current directory
		}
		file := filepath.Join(in, command)
		err := executable(file)
		if err == nil {
			return file, nil
		}
		if refused == nil && !errors.Is(err, fs.ErrNotExist) {
			refused = err
		}
	}
	if refused != nil {
		return "", fmt.Errorf("command %s: %w", command, refused)
	}
	if strings.ContainsAny(command, " \t") {
		return "", fmt.Errorf("command %q not found: it has a space in it, put arguments into args", command)
	}
	return "", fmt.Errorf("command %s not found in PATH %s", command, path)
}

func executable(file string) error {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory", file)
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("%s: %w: it is not executable", file, fs.ErrPermission)
	}
	return nil
}

// log opens the log of a process.
func (s Server) log(process string, hide *redact.Redactor) *proc.Log {
	if s.Stderr == nil {
		return nil
	}
	return proc.NewLog(s.Stderr(process), hide)
}
