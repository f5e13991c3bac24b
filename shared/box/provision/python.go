package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// pythonManifests returns the names of the files that declare the dependencies of a Python
// program.
func pythonManifests() []string {
	return []string{"requirements.txt", "pyproject.toml", "setup.py", "setup.cfg"}
}

// pythonVersion is a script that prints all that an install depends on.
const pythonVersion = "import sys,sysconfig;print(sys.implementation.cache_tag,sys.version.split()[0],sysconfig.get_platform())"

// platform returns the part of pythonVersion's output on which the choice of package files depends.
func platform(version string) string {
	words := strings.Fields(version)
	if len(words) != 3 {
		return version
	}
	return words[0] + " " + words[2]
}

// python installs the dependencies that the Python manifests in Server.HostPath declare. The process
// will run in the virtual environment of the install. python returns the folder of the install, ""
// if there are no manifests. The argument hint is the interpreter of the server's own command.
func (s *provisioning) python(ctx context.Context, hint string) (string, error) {
	root, err := os.OpenRoot(s.host)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }() // nothing was written through it
	want, err := readPython(root)
	if err != nil {
		return "", installError(err)
	}
	if !want.requirements && len(want.folders) == 0 {
		return "", nil
	}
	interpreter, err := s.interpreter(hint)
	if err != nil {
		return "", installError(err)
	}
	version, err := s.version(ctx, interpreter, "-I", "-c", pythonVersion)
	if err != nil {
		return "", installError(err)
	}
	parts := append([]string{"python-2", version, fmt.Sprint(s.server.Scripts)}, want.parts...)
	if len(want.folders) > 0 {
		code, err := source(ctx, s.host)
		if err != nil {
			return "", err
		}
		parts = append(parts, code)
	}
	in := pythonInstall{interpreter: interpreter, wanted: want.text, options: want.options, from: s.host, folders: want.folders}
	if want.requirements {
		in.what = "-r requirements.txt"
	}
	const what = "the Python dependencies"
	l, err := s.locked(ctx, lockName("python", "project", append([]string{platform(version)}, want.parts...)...), what,
		func(ctx context.Context, b build) ([]byte, error) { return s.resolvePython(ctx, b, in) })
	if err != nil {
		return "", installError(err)
	}
	dir, err := s.install(ctx, recipe{
		kind: "python", key: digest(append(parts, string(l.text))...), what: what, whole: wholeVenv,
		build: func(ctx context.Context, b build) error { return s.buildPython(ctx, b, in, l) },
	})
	if err != nil {
		return "", err
	}
	s.enter(filepath.Join(dir, "venv"), dir)
	return dir, nil
}

// enter makes the process run in the virtual environment venv, and lets it read the folder dir.
func (s *provisioning) enter(venv, dir string) {
	s.launch.Env["VIRTUAL_ENV"] = venv
	s.launch.Path = append([]string{filepath.Join(venv, "bin")}, s.launch.Path...)
	s.launch.Reads = append(s.launch.Reads, dir)
}

// pythonWants is what the Python manifests in Server.HostPath ask for.
type pythonWants struct {
	requirements bool     // there is a requirements.txt
	text         string   // all requirements in one text, without those that name folders
	options      string   // those lines of text that name indexes
	folders      []folder // folders to build and install: those that requirements name, and "." if the project itself can be installed
	parts        []string // names and contents of the manifests, for digests
}

func readPython(root *os.Root) (pythonWants, error) {
	var w pythonWants
	project := false
	for _, name := range pythonManifests() {
		data, err := manifest(root, name)
		if err != nil {
			return w, err
		}
		if data == nil {
			continue
		}
		text := string(data)
		w.parts = append(w.parts, name, text)
		switch name {
		case "requirements.txt":
			w.requirements = true
			if err := w.follow(root, name, text, 0); err != nil {
				return w, err
			}
		case "pyproject.toml": // without these sections it contains only settings of tools
			project = project || hasSection(text, "project") || hasSection(text, "build-system")
		case "setup.cfg":
			project = project || hasSection(text, "metadata") || hasSection(text, "options")
		case "setup.py":
			project = true
		}
	}
	if project && !slices.ContainsFunc(w.folders, func(f folder) bool { return f.path == "." }) {
		w.folders = append(w.folders, folder{path: "."})
	}
	return w, nil
}

func hasSection(text, name string) bool {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "["+name+"]") {
			return true
		}
	}
	return false
}

// follow adds the text of a requirements file, and of the files that it refers to. A requirement
// that names a folder is added to w.folders. The argument name is the path of the file below root,
// and depth is how many files led to this one.
func (w *pythonWants) follow(root *os.Root, name, text string, depth int) error {
	if depth > 8 {
		return errors.New("requirements files name each other without end")
	}
	for line := range strings.Lines(text) {
		var err error
		line = strings.TrimSpace(line)
		option, value, _ := strings.Cut(strings.Replace(line, "=", " ", 1), " ")
		value, _, _ = strings.Cut(strings.TrimSpace(value), " #")
		below := path.Join(path.Dir(name), value)
		switch option {
		case "-r", "--requirement", "-c", "--constraint":
			data, err := manifest(root, below)
			if err != nil {
				return err
			}
			w.parts = append(w.parts, below, string(data))
			if option == "-r" || option == "--requirement" {
				err = w.follow(root, below, string(data), depth+1)
			} else {
				w.text += "-c " + filepath.Join(root.Name(), below) + "\n"
				more := pythonWants{}
				err = more.follow(root, below, string(data), depth+1)
				w.parts = append(w.parts, more.parts...)
			}
			if err != nil {
				return err
			}
			continue
		case "-f", "--find-links":
			if strings.HasPrefix(value, ".") {
				line = option + " " + filepath.Join(root.Name(), below)
			}
			w.options += line + "\n"
		case "-i", "--index-url", "--extra-index-url", "--no-index":
			w.options += line + "\n"
		case "-e", "--editable":
			line = value
		}
		if f, ok := folderIn(line); ok {
			if !filepath.IsAbs(f.path) {
				f.path = filepath.Join(root.Name(), path.Dir(name), f.path)
			}
			if f.path, err = filepath.Rel(root.Name(), f.path); err != nil || !filepath.IsLocal(f.path) {
				return fmt.Errorf("%s names %s, which is not in the project", name, line)
			}
			if info, err := root.Stat(f.path); err == nil && info.Mode().IsRegular() {
				line = filepath.Join(root.Name(), f.path) + f.extras // the path of a wheel or an archive
			} else {
				w.folders = append(w.folders, f)
				continue
			}
		}
		w.text += line + "\n"
	}
	return nil
}

// folderIn parses a requirement that names a folder or a file by its path, such as "./lib[cli]",
// "." or "lib @ file:./lib". The result ok is false for any other requirement.
func folderIn(line string) (f folder, ok bool) {
	line, _, _ = strings.Cut(line, " #")
	line, _, _ = strings.Cut(line, ";")
	_, file, is := strings.Cut(line, "file:")
	switch {
	case is && !strings.HasPrefix(line, "-"):
		line = strings.TrimPrefix(file, "//")
	case !strings.HasPrefix(line, "."):
		return f, false
	}
	f.path = strings.TrimSpace(line)
	if at := strings.IndexByte(f.path, '['); at >= 0 {
		f.path, f.extras = f.path[:at], f.path[at:]
	}
	return f, true
}

// outsidePython returns the command if it is the path of a Python outside of virtual environments,
// and "" otherwise.
func outsidePython(command string) string {
	if !filepath.IsAbs(command) || !strings.HasPrefix(filepath.Base(command), "python") {
		return ""
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(filepath.Dir(command)), "pyvenv.cfg")); err == nil || !executable(command) {
		return ""
	}
	return command
}

// interpreter finds the Python with which a virtual environment is made. The argument hint is a
// name or a path, "" for any.
func (s *Provisioner) interpreter(hint string) (string, error) {
	if filepath.IsAbs(hint) {
		return hint, nil
	}
	for _, name := range []string{hint, "python3", "python"} {
		if !strings.HasPrefix(name, "python") {
			continue
		}
		if file, err := s.program(name); err == nil {
			return file, nil
		}
	}
	return "", errors.New("no python3 in PATH: install Python where boxes run")
}

// wholeVenv reports whether the interpreter of the virtual environment in dir still exists.
func wholeVenv(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, "venv", "bin", "python"))
	return err == nil && info.Mode().IsRegular()
}
