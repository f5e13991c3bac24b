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

// What holds when a [Server] says nothing.
const (
	DefaultStartupTimeout = 300 * time.Second
	DefaultProbeTime      = 30 * time.Second
	DefaultToolTimeout    = 300 * time.Second
	DefaultAnswerTimeout  = 6 * time.Hour
	DefaultIdle           = 120 * time.Second
)

// WorkspaceVariable stands, in arguments and in values of the environment, for the
// workspace of the process, which nobody knows before it is made.
const WorkspaceVariable = "${workspaceFolder}"

// Server is the configured server of a box. New takes it over: its map and slice
// must not change any more. It has a field for each setting, which is why it has many.
type Server struct {
	// Name is how errors and logs call it.
	Name string
	// Command is a program, never with arguments in it and never run by a shell: a
	// path, which is taken from Cwd if it is relative, or a name that is looked up
	// in the PATH the server will have.
	Command string
	Args    []string
	// Env is added to the environment of the server and overrides it. Values of six
	// bytes and more are hidden in what the box says, in the forms that programs print
	// them in.
	Env map[string]string
	// Secrets names variables of Env whose values are hidden whatever their length.
	Secrets []string
	// Base is the environment of the runner. PATH, HOME, LANG and TMPDIR are taken
	// from it; nothing else of it reaches the server.
	Base map[string]string
	// Cwd is the directory the server runs in, "" for that of the runner.
	Cwd string
	// Provisioner prepares each process and says what of Command, Args and Cwd is then to
	// be executed. Nil executes them as they are.
	Provisioner Provisioner
	// Keeper keeps the workspaces that the Provisioner makes while the box sleeps. Nil
	// keeps none. The Provisioner must be there.
	Keeper Keeper
	// Kept, for processes of one session, is ScopePrincipal if each is to begin with
	// what any other of its principal has left last.
	Kept Scope

	// Scope says which sessions have one process between them; "" is ScopeSession. The
	// first one's delivery starts it, the end of one leaves it to the others, and all
	// hear what it says of no call. Who shares it sees what others do in it, as far as
	// the server shows that.
	Scope Scope

	// Sandbox makes the place that a process is confined to, one for each, by the name
	// of the process. It knows what the Provisioner has put in place, which is its Cwd only
	// without one. Its errors are told as session_create if they are a
	// [*sandbox.Error]. Nil leaves the server the rights of the runner.
	Sandbox func(process string, placed provision.Launch) (*sandbox.Sandbox, error)

	// Mark, if there is one, is text that no other box on the machine has, such as a
	// folder of its own. Each process then has it in the variable [proc.MarkEnv], with a
	// slash and a number behind it; what carries that of a process when it has ended,
	// such as a child that left its group, is ended with it. [proc.EndMarked] finds what a
	// runner that was killed has left. Only on Linux.
	Mark string
	// MaxProcesses is how many processes there may be at a time, in all sessions; 0
	// for any number. One more has the process stopped that has had nothing to do for
	// longest, and is refused if all have.
	MaxProcesses int
	// Stderr, if not nil, is asked for a place for what a process says on its stderr,
	// by the name of the process. It gets whole lines with secrets redact.Hidden, lines that
	// begin with "stdout: " of what was no message there, and lines that begin with "---"
	// about the process itself; it is called from one goroutine at a time. Its errors are
	// nobody's. The box closes it. Nil has the end of it logged with the failure.
	Stderr func(process string) io.WriteCloser

	// ShowOutput says that clients get, in errors, the end of what a process, or its
	// install, wrote on stderr, and on stdout beside messages: for a machine whose clients
	// are its operator. What a hosted program prints may be meant for nobody else.
	ShowOutput bool

	// Era is what the server was found to speak, "" if that is not known. A process of
	// it then need not be asked in vain. It is found out anew if it is wrong.
	Era bridge.Era

	// StartupTimeout is how long a process may take from its start to its answer to
	// initialize, with what is done for it before. Zero means the default.
	StartupTimeout time.Duration
	// ProbeTime is how long a process of a server of which nothing is known may take to
	// answer server/discover, from its start, before it is thrown away; after a sixth of
	// that it is asked for initialize, too. Zero means the default.
	ProbeTime time.Duration
	// ToolTimeout is how long one tools/call, or any other request, may take from when
	// the process is given it. Zero means the default, less than zero no limit.
	ToolTimeout time.Duration
	// AnswerTimeout is how long the client may take to answer a question that belongs
	// to a request. ToolTimeout stands still meanwhile. Zero means the default.
	AnswerTimeout time.Duration
	// Idle is how long a process with nothing to do is kept. Zero means the default.
	Idle time.Duration
}

// Provisioner puts in place what processes need before they start. A [provision.Provisioner] is
// one.
type Provisioner interface {
	// Provision prepares a process by its name, which is that of its session, or begins
	// with "principal-", or is "shared". It blocks as long as
	// that takes, and gives up when ctx ends. Its errors may be a [*provision.Error].
	Provision(ctx context.Context, process string, tell func(provision.Progress)) (provision.Launch, error)
	// Remove takes away what was made for a process of a session that has ended.
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

// environment is what the server sees: four variables a program cannot well live
// without, and what is configured. A clean one, because the runner's own holds
// tokens.
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

// staged is the server as it is to be started once a process was prepared.
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
	keep string // the workspace that is to be saved when it has ended, "" for none

	unrun []string // packages whose install scripts were not run
}

// lacks names the first argument that looks like a script and is not there, and the
// folder it was looked for in. It is for a server that ends at once: whether an
// argument is a file, only the server knows.
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

// launch resolves the command as the server's own environment would. It fails
// with an error for the user when the server cannot be started.
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

// lookPath finds a program as execvp does, in the path and directory given instead
// of those of this program.
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
			continue // the current directory is no place to look for programs
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
