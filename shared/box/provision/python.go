package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// pythonManifests lists the files that declare the dependencies of a Python program.
func pythonManifests() []string {
	return []string{"requirements.txt", "pyproject.toml", "setup.py", "setup.cfg"}
}

// pythonVersion is a script that prints the facts that decide whether an install fits.
const pythonVersion = "import sys,sysconfig;print(sys.implementation.cache_tag,sys.version.split()[0],sysconfig.get_platform())"

// platform returns the part of pythonVersion's answer that decides which package files
// fit.
func platform(version string) string {
	words := strings.Fields(version)
	if len(words) != 3 {
		return version
	}
	return words[0] + " " + words[2]
}

// python installs the dependencies of the host path into a virtual environment, for the
// process to run in. It returns the folder of the environment, "" if there are no
// manifests. hint names the interpreter of the server's own command.
func (s *provisioning) python(ctx context.Context, hint string) (string, error) {
	root, err := os.OpenRoot(s.host)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }() // only read
	want, err := readPython(root)
	if err != nil {
		return "", installError(err)
	}
	if !want.requirements && !want.project {
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
	if want.project || want.folders {
		code, err := source(ctx, s.host)
		if err != nil {
			return "", err
		}
		parts = append(parts, code)
	}
	in := pythonInstall{interpreter: interpreter, from: s.host, project: want.project, folders: want.folders}
	if want.requirements {
		in.what = []string{"-r", "requirements.txt"}
	}
	const what = "the Python dependencies"
	l := locked{done: func() {}}
	if !want.folders { // folders have no hashes
		l, err = s.locked(ctx, lockName("python", "project", append([]string{platform(version)}, want.parts...)...), what,
			func(ctx context.Context, b build) ([]byte, error) {
				return pythonInstaller{s}.resolvePython(ctx, b, in)
			})
		if err != nil {
			return "", installError(err)
		}
	}
	defer l.done()
	dir, err := s.install(ctx, recipe{
		kind: "python", key: digest(append(parts, string(l.text))...), what: what, whole: wholeVenv,
		build: func(ctx context.Context, b build) error { return pythonInstaller{s}.buildPython(ctx, b, in, l) },
	})
	if err != nil {
		return "", err
	}
	s.enter(filepath.Join(dir, "venv"), dir)
	return dir, nil
}

// enter makes the process run in a virtual environment.
func (s *provisioning) enter(venv, reads string) {
	s.launch.Env["VIRTUAL_ENV"] = venv
	s.launch.Path = append([]string{filepath.Join(venv, "bin")}, s.launch.Path...)
	s.launch.Reads = append(s.launch.Reads, reads)
}

// pythonWants is the content of the manifests.
type pythonWants struct {
	requirements bool     // there is a requirements.txt
	project      bool     // the folder itself can be installed
	folders      bool     // the requirements name folders
	parts        []string // names and contents of the manifests
}

func readPython(root *os.Root) (pythonWants, error) {
	var w pythonWants
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
		case "pyproject.toml": // without these sections it only holds settings of tools
			w.project = w.project || hasSection(text, "project") || hasSection(text, "build-system")
		case "setup.cfg":
			w.project = w.project || hasSection(text, "metadata") || hasSection(text, "options")
		case "setup.py":
			w.project = true
		}
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

// follow reads the files that a requirements file names, and records whether it names
// folders.
func (w *pythonWants) follow(root *os.Root, name, text string, depth int) error {
	if depth > 8 {
		return errors.New("requirements files name each other without end")
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		option, value, _ := strings.Cut(strings.Replace(line, "=", " ", 1), " ")
		switch {
		case option == "-r" || option == "--requirement" || option == "-c" || option == "--constraint":
			other := path.Join(path.Dir(name), strings.TrimSpace(value))
			data, err := manifest(root, other)
			if err != nil {
				return err
			}
			w.parts = append(w.parts, other, string(data))
			if err := w.follow(root, other, string(data), depth+1); err != nil {
				return err
			}
		case option == "-e" || option == "--editable" || strings.HasPrefix(line, ".") || strings.Contains(line, "file:"):
			w.folders = true
		}
	}
	return nil
}

// interpreter finds the Python for a virtual environment.
func (s *Provisioner) interpreter(hint string) (string, error) {
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

// wholeVenv reports whether the interpreter of an environment still exists.
func wholeVenv(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, "venv", "bin", "python"))
	return err == nil && info.Mode().IsRegular()
}
