package provision

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// host returns the path of the folder to copy, with links resolved, or "" if there is none. Auto may
// not infer home, the home folder of the user.
func (s Server) host(home string) (string, error) {
	path := s.HostPath
	if path == Auto {
		path = InferHostPath(s.Command, s.Args)
		if path == "" || path == home {
			return "", errors.New(`host_path "auto": no absolute path in command and args names a file of a project: write the folder itself`)
		}
	}
	if path == "" {
		return "", nil
	}
	if !filepath.IsAbs(path) || slices.Contains(strings.Split(filepath.ToSlash(path), "/"), "..") {
		return "", errors.New("host_path must be an absolute path, and not hold the name '..'")
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("host_path: %w", err)
	}
	if info, err := os.Stat(real); err != nil {
		return "", fmt.Errorf("host_path: %w", err)
	} else if !info.IsDir() {
		return "", fmt.Errorf("host_path: %s is not a folder", path)
	}
	if ofSystem(real) {
		return "", fmt.Errorf("host_path: %s is a folder of the system: give the folder of the server", path)
	}
	return real, nil
}

// ofSystem reports whether a folder is the root folder, or one of the operating system.
func ofSystem(real string) bool {
	if real == "/" {
		return true
	}
	for _, dir := range []string{"/etc", "/proc", "/sys", "/dev", "/run", "/boot", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/var/run"} {
		if within(real, dir) && !strings.HasPrefix(real, "/usr/local/") && !strings.HasPrefix(real, "/usr/src/") {
			return true
		}
	}
	return false
}

// within reports whether path is root or is below it. Both must be clean.
func within(path, root string) bool {
	return path == root || strings.HasPrefix(path, strings.TrimSuffix(root, "/")+"/")
}

// InferHostPath infers the folder of a project from the absolute paths in a command line. From the
// common folder of all files there, it goes up to the nearest folder with a manifest, if there is
// one. A file in a virtual environment counts as one in the folder above the environment. If all
// files belong to the system, InferHostPath returns "".
func InferHostPath(cmd string, args []string) string {
	common := ""
	for _, part := range append([]string{cmd}, args...) {
		if !filepath.IsAbs(part) {
			continue
		}
		info, err := os.Stat(part)
		if err != nil {
			continue
		}
		dir := part
		if !info.IsDir() {
			dir = filepath.Dir(part)
		}
		// This must come before links are resolved, because the interpreter of a virtual
		// environment is a link.
		dir = unwrapVenv(filepath.Clean(dir))
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dir = real
		}
		if ofSystem(dir) || dir == "/usr/local/bin" {
			continue
		}
		if common == "" {
			common = dir
		}
		for !within(dir, common) {
			common = filepath.Dir(common)
		}
	}
	if common == "" || ofSystem(common) {
		return ""
	}
	return project(common)
}

// project returns the nearest folder that has a manifest, from dir upwards to the root of the
// repository, or dir if there is none.
func project(dir string) string {
	for at := dir; at != "/"; at = filepath.Dir(at) {
		for _, name := range append([]string{"package.json"}, pythonManifests()...) {
			if _, err := os.Stat(filepath.Join(at, name)); err == nil {
				return at
			}
		}
		if _, err := os.Stat(filepath.Join(at, ".git")); err == nil {
			break
		}
	}
	return dir
}

// unwrapVenv returns the folder that contains a virtual environment, if dir is inside of one: /p
// for /p/.venv/bin. If dir is not, unwrapVenv returns dir.
func unwrapVenv(dir string) string {
	parts := strings.Split(dir, "/")
	for i := len(parts) - 1; i > 0; i-- {
		if inVenv(parts[i-1], parts[i]) {
			return "/" + strings.TrimPrefix(strings.Join(parts[:i-1], "/"), "/")
		}
	}
	return dir
}

// inVenv reports whether venv and bin are usual names of a virtual environment, and of the folder
// with its programs.
func inVenv(venv, bin string) bool {
	return slices.Contains([]string{".venv", "venv", "env", ".env"}, venv) && (bin == "bin" || bin == "Scripts")
}

// rewrite adapts the command line to the workspace: it changes paths below Server.HostPath into paths
// in the copy. A command in a virtual environment, which is made anew, becomes a name without a
// folder. The result plain is the name of such a command, and "" for any other.
func (s *provisioning) rewrite() (plain string, err error) {
	l := &s.launch
	from := []string{s.host}
	if p := s.server.HostPath; p != s.host && p != Auto {
		from = append(from, filepath.Clean(p))
	}
	move := func(path string) string { return rewritePath(path, from, l.Workspace) }
	if l.Cwd, err = cwd(move(l.Cwd), l.Workspace); err != nil {
		return "", err
	}
	l.Command, plain = rewriteCommand(l.Command, from, l.Workspace)
	l.Args = slices.Clone(l.Args)
	for i, arg := range l.Args {
		l.Args[i] = move(arg)
		if name, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(name, "-") {
			l.Args[i] = name + "=" + move(value)
		}
	}
	return plain, nil
}

// cwd returns the working folder of a process: an absolute path as configured, or else a folder in
// the workspace.
func cwd(configured, workspace string) (string, error) {
	switch {
	case filepath.IsAbs(configured):
		return configured, nil
	case configured == "":
		return workspace, nil
	case !filepath.IsLocal(configured):
		return "", fmt.Errorf("cwd %s leads out of the workspace", configured)
	}
	return filepath.Join(workspace, configured), nil
}

// rewritePath returns where a path is after one of the folders oldDirs was moved to newDir. Paths
// that are not in oldDirs stay, even if they begin with the letters of such a folder.
func rewritePath(path string, oldDirs []string, newDir string) string {
	if !filepath.IsAbs(path) {
		return path
	}
	clean := filepath.Clean(path)
	for _, dir := range oldDirs {
		if within(clean, dir) {
			return newDir + strings.TrimPrefix(clean, dir)
		}
	}
	return path
}

// rewriteCommand is rewritePath for a command. If the command is in a virtual environment of the
// project, moved and plain are its name without a folder, but moved is "python" for each Python. For
// any other command plain is "".
func rewriteCommand(cmd string, oldDirs []string, newDir string) (moved, plain string) {
	moved = rewritePath(cmd, oldDirs, newDir)
	local := moved != cmd || !filepath.IsAbs(cmd) && strings.Contains(cmd, "/")
	dir, name := filepath.Split(filepath.Clean(cmd))
	parts := strings.Split(strings.Trim(dir, "/"), "/")
	if n := len(parts); !local || n < 2 || !inVenv(parts[n-2], parts[n-1]) {
		return moved, ""
	}
	if strings.HasPrefix(name, "python") {
		return "python", name
	}
	return name, name
}
