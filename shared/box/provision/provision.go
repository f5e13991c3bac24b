package provision

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Config configures a Provisioner. Base and Cache are required.
type Config struct {
	// Base is a folder for workspaces. Only one box uses it.
	Base string
	// Cache is a folder for installs. Several boxes, even in different programs, may share it at
	// the same time.
	Cache string
	// Locks is a folder of lock files, which fix the versions of packages, for example in a
	// container image; "" means none. Locks is only read, and takes precedence over the lock files
	// in Cache.
	Locks string
	// Baked is a folder of installs in a container image; "" means none. Baked is only read, and
	// takes precedence over everything else. See [Provisioner.Bake].
	Baked string
	// Kept stores the installs of npx and uvx outside of Cache, so that they outlive it: a box
	// whose Cache is empty unpacks a stored install instead of making it anew. If Kept is nil,
	// nothing is stored.
	Kept Kept
	// Confine makes the sandbox in which packages run their own code while they are installed. If
	// Confine is nil, no such code is run.
	Confine func(Workshop) (Sandbox, error)
	// Compile makes installs compile Python modules, so that processes start faster.
	Compile bool
	// Environ is the environment of the runner. Installers get only its permitted variables.
	// Programs are looked up in the PATH of Environ.
	Environ map[string]string
	// Log may be nil.
	Log *slog.Logger
}

// Workshop says what the code of packages may use during an install.
type Workshop struct {
	Folder   string   // the only folder it may write in
	Read     []string // folders that it may read in addition to the system's
	Programs []string // programs that it may execute; it may also read what belongs to them
}

// Sandbox runs a program with fewer rights. [*sandbox.Sandbox] implements it.
type Sandbox interface {
	// Start starts a program, as cmd.Start would.
	Start(cmd *exec.Cmd) error
	// Environment returns the variables that programs in the sandbox need.
	Environment() map[string]string
	// End kills all processes in the sandbox.
	End() error
}

// Server says how the operator has configured a server.
type Server struct {
	Command string
	Args    []string
	Env     map[string]string
	Unset   []string // variables that the server does not get from the machine
	Cwd     string

	// HostPath is a folder with the server's program. [Auto] infers it from the command line; ""
	// means none. The process works in a copy of the folder, for which its dependencies are
	// installed. If Writable is set, the process works in the folder itself, with the dependencies
	// that are there: the Provisioner installs nothing from a folder that a process can change.
	HostPath string
	Writable bool
	// Workspace asks for an empty workspace if there is no HostPath.
	Workspace bool
	// Scripts lets packages run their own code during an install, in the sandbox that
	// Config.Confine makes.
	Scripts bool
}

// Auto as a host path means that [InferHostPath] infers the folder from the command line.
const Auto = "auto"

// Launch is the command with which the process starts, once everything is installed.
type Launch struct {
	Command string
	Args    []string
	Env     map[string]string // variables to add to the server's own
	Path    []string          // folders to put before the server's PATH
	Cwd     string            // "" for the runner's own

	// Workspace is the folder in which the process may write, "" for none. Reads are folders
	// outside of Workspace that the process must be able to read and execute.
	Workspace string
	Reads     []string
	// Staged is a file that lists what the Provisioner has put into the workspace, "" if nothing.
	Staged string

	// Unrun names packages whose install scripts were not run.
	Unrun []string
}

// Progress is one step of a start, for clients that wait. Text is short, and contains no secrets
// and no paths.
type Progress struct {
	Phase Phase
	Text  string
}

// Provisioner prepares the processes of one server. It is safe for concurrent use.
type Provisioner struct {
	cfg    Config
	server Server
	log    *slog.Logger

	mu   sync.Mutex
	held map[string]func() // functions that release the locks on installs in use, by folder
}

// New makes a Provisioner, without I/O.
func New(c Config, s Server) *Provisioner {
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Provisioner{cfg: c, server: s, log: log, held: map[string]func(){}}
}

// Provision prepares one process. The argument process is the name of the process in the box, and
// may be any text. When ctx ends, Provision gives up and kills what it has started. Provision calls
// the function tell, if it is not nil, on the caller's goroutine. The error is an [*Error].
//
// If the workspace is new, Provision first calls the function restore, if it is not nil. Provision
// does not change what restore has put there, and does not bring back files that the process had
// removed.
func (s *Provisioner) Provision(ctx context.Context, process string, tell func(Progress), restore Restore) (Launch, error) {
	if tell == nil {
		tell = func(Progress) {}
	}
	run := &provisioning{Provisioner: s, tell: tell, restore: restore, launch: Launch{
		Command: s.server.Command, Args: s.server.Args, Cwd: s.server.Cwd, Env: map[string]string{},
	}}
	if err := run.all(ctx, process); err != nil {
		known, ok := errors.AsType[*Error](err)
		if !ok {
			known = &Error{Phase: SessionCreate, Err: err}
		}
		if cause := context.Cause(ctx); cause != nil {
			known.Err = fmt.Errorf("%w (%w)", known.Err, cause)
		}
		return Launch{}, known
	}
	return run.launch, nil
}

// Restore fills the empty workspace of a process with the files of an earlier process, and returns
// their names and those of files that the earlier process had removed.
type Restore func(ctx context.Context, workspace string) (names []string, err error)

// Remove deletes the files of a process, which must have ended.
func (s *Provisioner) Remove(process string) error {
	return os.RemoveAll(s.home(process))
}

// home returns the folder of a process below Config.Base.
func (s *Provisioner) home(process string) string {
	sum := sha256.Sum256([]byte(process))
	return filepath.Join(s.cfg.Base, ".mcp", hex.EncodeToString(sum[:8]))
}

// provisioning is the state of one call of Provision.
type provisioning struct {
	*Provisioner
	tell    func(Progress)
	restore Restore
	host    string // the folder to copy, without links; "" for none
	launch  Launch
}

func (s *provisioning) say(p Phase, format string, args ...any) {
	s.tell(Progress{Phase: p, Text: fmt.Sprintf(format, args...)})
}

// all goes through the steps of a start, up to the first error.
func (s *provisioning) all(ctx context.Context, process string) error {
	host, err := s.server.host(s.cfg.Environ["HOME"])
	if err != nil {
		return err
	}
	if host != "" && s.server.Writable {
		s.launch.Workspace = host
		if s.launch.Cwd, err = cwd(s.launch.Cwd, host); err != nil {
			return err
		}
		return s.tool(ctx)
	}
	s.host = host
	if err := s.workspace(ctx, process); err != nil {
		return err
	}
	if err := s.dependencies(ctx); err != nil {
		return err
	}
	return s.tool(ctx)
}

// dependencies installs what the program in Server.HostPath needs, and makes the command line use
// the install.
func (s *provisioning) dependencies(ctx context.Context) error {
	if s.host == "" {
		return nil
	}
	plain, err := s.rewrite()
	if err != nil {
		return err
	}
	own := outsidePython(s.launch.Command)
	python, err := s.python(ctx, cmp.Or(plain, own))
	if err != nil {
		return err
	}
	if own != "" && python != "" {
		s.launch.Command = "python" // the interpreter of the virtual environment, which was made with the Python in the command
	}
	if plain != "" && python == "" {
		// No manifest lists the packages of the virtual environment, which was not copied. So the
		// process gets an interpreter without these packages.
		s.launch.Command = s.firstProgram(s.launch.Command, plain, "python3")
	}
	return s.node(ctx)
}

// workspace makes the workspace of the process, if it needs one.
func (s *provisioning) workspace(ctx context.Context, process string) error {
	if s.host == "" && !s.server.Workspace {
		return nil
	}
	home := s.home(process)
	folder := filepath.Join(home, "workspace")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make the workspace: %w", err)
	}
	s.launch.Workspace = folder
	if s.host == "" && s.launch.Cwd == "" {
		s.launch.Cwd = folder
	}
	if s.host == "" && s.restore == nil {
		return nil
	}
	unlock, err := lock(ctx, filepath.Join(home, "lock"), unix.LOCK_EX, func() {
		s.say(SessionCreate, "waiting for another copy of the workspace")
	})
	if err != nil {
		return fmt.Errorf("lock the workspace: %w", err)
	}
	defer unlock()
	s.launch.Staged = filepath.Join(home, "staged.json")
	if _, err := os.Stat(s.launch.Staged); err != nil && s.restore != nil {
		if err := s.restored(ctx, folder); err != nil {
			return fmt.Errorf("restore the workspace: %w", err)
		}
	}
	if s.host == "" {
		return nil
	}
	s.say(SessionCreate, "copying the workspace")
	if err := refresh(ctx, s.host, folder, s.launch.Staged); err != nil {
		return fmt.Errorf("copy the host path into the workspace: %w", err)
	}
	return nil
}

// restored restores a new workspace, and records the names of the restored files. Without a
// record, the workspace counts as new.
func (s *provisioning) restored(ctx context.Context, folder string) error {
	if err := errors.Join(os.RemoveAll(folder), os.Mkdir(folder, 0o755)); err != nil {
		return err
	}
	names, err := s.restore(ctx, folder)
	if err != nil {
		return err
	}
	t := tree{}
	for _, name := range names {
		t[name] = entry{Own: true}
	}
	return writeTree(s.launch.Staged, t)
}

// firstProgram returns the first of names that is a program in the PATH, or names[0] if none is.
func (s *Provisioner) firstProgram(names ...string) string {
	for _, name := range names {
		if _, err := s.program(name); err == nil {
			return name
		}
	}
	return names[0]
}

// program finds a program in the PATH of the server's Env. If Env has no PATH, program uses that
// of the runner.
func (s *Provisioner) program(name string) (string, error) {
	path := s.server.Env["PATH"]
	if path == "" {
		path = s.cfg.Environ["PATH"]
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); filepath.IsAbs(dir) && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("program %s: %w", name, fs.ErrNotExist)
}

// digest returns 32 hexadecimal digits, which differ for different parts.
func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		// With the length before each part, different parts never give the same bytes.
		_, _ = fmt.Fprintf(h, "%d:%s", len(p), p) // never fails
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// allowed reports whether installers get a variable.
func allowed(name string) bool {
	switch upper := strings.ToUpper(name); upper {
	case "PATH", "HOME", "LANG", "TMPDIR", "PYENV_ROOT":
		return true
	default:
		return IsNetwork(name) || strings.HasPrefix(upper, "PIP_") || strings.HasPrefix(upper, "UV_") || strings.HasPrefix(upper, "NPM_CONFIG_")
	}
}

// environ returns the environment of installers, and adds the variables in more. It includes the
// permitted variables of the server's environment, because npx and uvx would see them.
func (s *Provisioner) environ(more ...string) []string {
	set := map[string]string{}
	for name, value := range s.cfg.Environ {
		if allowed(name) && !IsNetwork(name) {
			set[name] = value
		}
	}
	maps.Copy(set, Network(s.cfg.Environ, s.server.Env, s.server.Unset))
	for name, value := range s.server.Env {
		if allowed(name) {
			set[name] = value
		}
	}
	var env []string
	for name, value := range set {
		env = append(env, name+"="+value)
	}
	return append(env, more...)
}
