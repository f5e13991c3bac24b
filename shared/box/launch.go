package box

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/redact"
)

// environment returns the environment of the server: PATH, HOME, LANG and TMPDIR, the variables
// for proxies and certificates ([provision.Network]), Given and Env. The rest of the runner's own
// environment is left out, because it contains tokens.
func (s Server) environment() map[string]string {
	tmp := cmp.Or(s.Base["TMPDIR"], "/tmp")
	env := provision.Network(s.Base, s.Env, s.Unset)
	maps.Copy(env, s.Given)
	maps.Copy(env, map[string]string{
		"PATH":   s.path(),
		"HOME":   cmp.Or(s.Base["HOME"], tmp), // package runners write their caches there
		"LANG":   cmp.Or(s.Base["LANG"], "C.UTF-8"),
		"TMPDIR": tmp,
	})
	for _, name := range s.Unset {
		delete(env, name)
	}
	maps.Copy(env, s.Env)
	return env
}

// path returns the PATH in which the server's programs are looked up.
func (s Server) path() string {
	if path, ok := s.Env["PATH"]; ok {
		return path
	}
	return cmp.Or(s.Base["PATH"], "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}

// redacted returns a redactor for the values of the server's Env, and for the passwords in the
// proxy variables of Base.
func (s Server) redacted() *redact.Redactor {
	hide := redact.New(s.Env, s.Secrets)
	for name, value := range s.Base {
		if provision.IsProxy(name) {
			hide.HideProxy(value)
		}
	}
	return hide
}

// staged returns the server with the command, folder and variables that the provisioner has
// prepared.
func (s Server) staged(l provision.Launch) Server {
	path := s.path()
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

// launch is what the operating system needs to start the server.
type launch struct {
	proc.Command
	// keep is the workspace to save after the end of the process, "" for none. The field staged is
	// a file that lists what the provisioner has put into the workspace.
	keep, staged string

	unrun []string // packages whose install scripts were not run
}

// launch finds the server's program, in the server's own PATH. Its error is written for the user.
func (s Server) launch() (launch, error) {
	if s.Cwd != "" {
		if info, err := os.Stat(s.Cwd); err != nil {
			return launch{}, fmt.Errorf("cwd of the server: %w", err)
		} else if !info.IsDir() {
			return launch{}, fmt.Errorf("cwd of the server: %s is not a directory", s.Cwd)
		}
	}
	env := s.environment()
	path, err := LookPath(s.Command, s.path(), s.Cwd)
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

// LookPath finds the program of a server as execvp does, but in the given PATH. A relative command
// with a slash is relative to dir. LookPath returns an absolute path. The error is written for the
// user.
func LookPath(command, path, dir string) (string, error) {
	if command == "" {
		return "", errors.New("command of the server is empty")
	}
	if strings.Contains(command, "/") {
		file := command
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		if err := executable(file); err != nil {
			return "", fmt.Errorf("command %s: %w", file, err)
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
			refused = fmt.Errorf("command %s: %w", file, err)
		}
	}
	if refused != nil {
		return "", refused
	}
	if strings.ContainsAny(command, " \t") {
		return "", fmt.Errorf("command %q not found: it has a space in it, put arguments into args", command)
	}
	return "", missing(command, len(filepath.SplitList(path)))
}

// missing returns the error for a program that is in none of the folders of the PATH.
func missing(command string, folders int) error {
	switch command {
	case "node", "npm", "npx":
		return fmt.Errorf("it needs %s, which is not installed: Node.js 20 or newer, or run the container image", command)
	case "python", "python3":
		return fmt.Errorf("it needs %s, which is not installed: Python 3.10 or newer, or run the container image", command)
	case "uv", "uvx":
		return fmt.Errorf("it needs %s, which is not installed: install uv. uvx with packages of PyPI, and no other options than --from, --with and --python, works without it", command)
	}
	return fmt.Errorf("%s is not on the PATH of dormouse run (%d folders). Installed with npm or pip? Use npx or uvx, or the whole path", command, folders)
}

// executable returns nil for a program. For any other file, the error says what is wrong, without
// the name of the file.
func executable(file string) error {
	info, err := os.Stat(file)
	problem, ok := errors.AsType[*fs.PathError](err)
	switch {
	case ok:
		return problem.Err
	case err != nil:
		return err
	case info.IsDir():
		return errors.New("it is a directory")
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("%w: it is not executable", fs.ErrPermission)
	}
	return nil
}
