package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// pythonInstall describes the contents of a virtual environment.
type pythonInstall struct {
	interpreter string
	what        []string // requirements, as arguments for pip
	from        string   // the folder of a project, "" for none
	project     bool     // the project itself is installed, too
	folders     bool     // what names folders, which have to be built
}

// guarded is a Python script that runs pip so that it can start no program. So pip cannot
// build a package, which would execute code of the package. The option --only-binary is
// not enough: pip forgets it for a dependency that is given by URL.
const guarded = `import runpy, sys
def guard(event, args):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty"):
        raise PermissionError("building from source is disabled")
sys.addaudithook(guard)
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)`

// pythonInstaller installs Python packages for one start, with pip or uv.
type pythonInstaller struct{ *provisioning }

// onlyWheels returns the options that keep pip and uv from building packages.
func (s pythonInstaller) onlyWheels() []string {
	if s.server.Scripts {
		return nil
	}
	return []string{"--only-binary", ":all:"}
}

// pip returns the beginning of a command line of pip. It is isolated (-I), so that
// Python imports no modules from its working folder.
func (s pythonInstaller) pip(ctx context.Context, b build, interpreter string, guard bool) ([]string, error) {
	if _, err := (command{argv: []string{interpreter, "-I", "-m", "pip", "--version"}, env: s.environ()}).run(ctx); err != nil {
		venv := filepath.Join(b.dir, "pip")
		if _, err := (command{argv: []string{interpreter, "-I", "-m", "venv", venv}, dir: b.dir, env: s.environ(), log: b.log}).run(ctx); err != nil {
			return nil, fmt.Errorf("python3 has no pip, and makes none: %w", err)
		}
		interpreter = filepath.Join(venv, "bin", "python")
	}
	if guard {
		return []string{interpreter, "-I", "-c", guarded}, nil
	}
	return []string{interpreter, "-I", "-m", "pip"}, nil
}

// workshop returns the folder in which code of packages may write during a build.
func workshop(b build) string { return filepath.Join(b.dir, "build") }

// inWorkshop runs pip in the workshop, confined.
func (s pythonInstaller) inWorkshop(ctx context.Context, b build, in pythonInstall, args ...string) error {
	pip, err := s.pip(ctx, b, in.interpreter, false)
	if err != nil {
		return err
	}
	// The interpreter of a version manager is a script that needs the whole installation,
	// so ask it for the real interpreter.
	real, err := command{argv: []string{pip[0], "-I", "-c", "import sys;print(sys.executable)"}, env: s.environ()}.run(ctx)
	if err != nil {
		return err
	}
	pip[0] = strings.TrimSpace(string(real))
	dir := workshop(b)
	if in.from != "" {
		dir = filepath.Join(dir, "source")
		if _, err := os.Stat(dir); err != nil {
			if err := errors.Join(os.MkdirAll(dir, 0o755), refresh(ctx, in.from, dir, filepath.Join(b.dir, "source.json"))); err != nil {
				return err
			}
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	argv := append(append(pip, args[0], "--no-input", "--disable-pip-version-check", "--quiet"), args[1:]...)
	reads := append(realPaths(pip[0]), filepath.Dir(filepath.Dir(pip[0])))
	return s.confined(ctx, Workshop{Folder: workshop(b), Programs: reads}, command{argv: argv, dir: dir, env: s.environ(), log: b.log})
}

// buildProject builds the project itself, in its sandbox, and returns its wheel.
func (s pythonInstaller) buildProject(ctx context.Context, b build, in pythonInstall) ([]string, error) {
	to := filepath.Join(workshop(b), "project")
	if !in.project {
		return nil, nil
	}
	args := append([]string{"wheel", "--no-deps", "--wheel-dir", to}, s.onlyWheels()...)
	if err := s.inWorkshop(ctx, b, in, append(args, ".")...); err != nil {
		return nil, fmt.Errorf("build of the project: %w", needsScripts(err))
	}
	return files(to, ".whl")
}

// files lists the plain files of an untrusted folder. If ending is not "", it lists only
// names with that ending.
func files(dir, ending string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var all []string
	for _, e := range entries {
		if e.Type().IsRegular() && strings.HasSuffix(e.Name(), ending) {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	return all, err
}

// resolvePython finds out which packages are needed, and returns them as requirements
// with hashes. The fetched files stay in b.dir for buildPython.
func (s pythonInstaller) resolvePython(ctx context.Context, b build, in pythonInstall) ([]byte, error) {
	project, err := s.buildProject(ctx, b, in)
	if err != nil {
		return nil, err
	}
	text := []byte("# " + strings.Join(in.what, " ") + "\n")
	if len(in.what)+len(project) == 0 {
		return text, nil
	}
	if uv, err := s.program("uv"); err == nil && !s.server.Scripts {
		more, err := s.compile(ctx, b, uv, in, project)
		return append(text, more...), err
	}
	got, err := s.download(ctx, b, in, append(slices.Clone(in.what), project...))
	if err != nil {
		return nil, err
	}
	for _, file := range got {
		name := filepath.Base(file)
		if slices.ContainsFunc(project, func(p string) bool { return filepath.Base(p) == name }) {
			continue
		}
		sum, err := fileHash(file)
		if err != nil {
			return nil, err
		}
		text = fmt.Appendf(text, "%s --hash=%s\n", requirement(name), sum)
	}
	return text, nil
}

// requirement returns the requirement for a file of the index: name-version.tar.gz, or a
// wheel.
func requirement(file string) string {
	if stem, ok := strings.CutSuffix(file, ".whl"); ok {
		parts := strings.Split(stem, "-")
		return strings.Join(parts[:min(2, len(parts))], "==")
	}
	for _, ending := range []string{".tar.gz", ".zip", ".tar.bz2", ".tgz", ".tar.xz", ".tar"} {
		file = strings.TrimSuffix(file, ending)
	}
	at := max(strings.LastIndexByte(file, '-'), 0)
	return file[:at] + "==" + strings.TrimPrefix(file[at:], "-")
}

// download fetches packages and returns their files. If packages may be built, it runs
// in the sandbox, because pip builds a package to learn its dependencies.
func (s pythonInstaller) download(ctx context.Context, b build, in pythonInstall, what []string) ([]string, error) {
	args := append([]string{"download", "--no-input", "--disable-pip-version-check", "--quiet"}, s.onlyWheels()...)
	if s.server.Scripts {
		to := filepath.Join(workshop(b), "got")
		if err := s.inWorkshop(ctx, b, in, append([]string{"download", "--dest", to}, what...)...); err != nil {
			return nil, fmt.Errorf("pip: %w", err)
		}
		return files(to, "")
	}
	pip, err := s.pip(ctx, b, in.interpreter, true)
	if err != nil {
		return nil, err
	}
	to, dir := filepath.Join(b.dir, "got"), in.from
	if dir == "" {
		dir = b.dir
	}
	argv := append(append(append(pip, args...), "--dest", to), what...)
	if _, err := (command{argv: argv, dir: dir, env: s.environ(), log: b.log}).run(ctx); err != nil {
		return nil, fmt.Errorf("pip: %w", needsScripts(err))
	}
	return files(to, "")
}

// compile resolves the requirements with uv.
func (s pythonInstaller) compile(ctx context.Context, b build, uv string, in pythonInstall, project []string) ([]byte, error) {
	var list strings.Builder
	for _, p := range project {
		list.WriteString(p + "\n")
	}
	if in.from != "" && len(in.what) == 2 {
		list.WriteString("-r " + filepath.Join(in.from, in.what[1]) + "\n")
	} else {
		list.WriteString(strings.Join(in.what, "\n") + "\n")
	}
	file := filepath.Join(b.dir, "wanted.txt")
	if err := os.WriteFile(file, []byte(list.String()), 0o600); err != nil {
		return nil, err
	}
	argv := append([]string{uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes", "--python", in.interpreter}, s.onlyWheels()...)
	out, err := command{argv: append(argv, file), dir: b.dir, env: s.environ(), log: b.log}.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("uv: %w", needsScripts(err))
	}
	var kept strings.Builder
	skip := false
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, " ") {
			// The project itself is built each time, so its hash does not last.
			skip = slices.ContainsFunc(project, func(p string) bool { return strings.Contains(line, filepath.Base(p)) })
		}
		if !skip {
			kept.WriteString(line)
		}
	}
	return []byte(kept.String()), nil
}

// needsScripts adds to a failed install the hint that a package would have to be built.
func needsScripts(err error) error {
	return hint(err, "only built packages (wheels) are installed: if there is none for this Python, "+scriptsSetting+" has the package built from its source, in a sandbox",
		"No matching distribution", "building from source is disabled", "no usable wheels", "no wheels", "is disabled")
}

// buildPython makes the virtual environment b.dir/venv with the packages of the lock.
func (s pythonInstaller) buildPython(ctx context.Context, b build, in pythonInstall, l locked) error {
	made := b
	if l.made != "" {
		made.dir = l.made
	}
	if err := s.fillVenv(ctx, b, made, in, l); err != nil {
		return l.mismatch(err)
	}
	for _, name := range []string{"build", "got", "pip", "source.json", "wanted.txt", "lock.txt"} {
		if err := os.RemoveAll(filepath.Join(b.dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// fillVenv fills the environment with the files in made, which were fetched for the lock.
// If there are none, it fetches them.
func (s pythonInstaller) fillVenv(ctx context.Context, b, made build, in pythonInstall, l locked) error {
	project, err := s.projectOf(ctx, made, in, l)
	if err != nil {
		return err
	}
	file := filepath.Join(b.dir, "lock.txt")
	if err := os.WriteFile(file, l.text, 0o644); err != nil {
		return err
	}
	empty := !strings.Contains(string(l.text), "--hash")
	if uv, err := s.program("uv"); err == nil && !s.server.Scripts && !in.folders {
		return s.uvInstall(ctx, b, uv, in, file, empty, project)
	}
	var wheels []string
	switch {
	case in.folders:
		// pip wheel builds the dependencies of in.what too.
		to := filepath.Join(workshop(made), "wheels")
		args := append(append([]string{"wheel", "--wheel-dir", to}, s.onlyWheels()...), in.what...)
		if err := s.inWorkshop(ctx, made, in, args...); err != nil {
			return fmt.Errorf("pip: %w", needsScripts(err))
		}
		if wheels, err = files(to, ".whl"); err != nil {
			return err
		}
	case !empty:
		if wheels, err = s.lockedWheels(ctx, made, in, file, l); err != nil {
			return err
		}
	}
	return s.pipInstall(ctx, b, in, append(wheels, project...))
}

// projectOf returns the wheel (the Python package) of the project. It builds the wheel,
// unless that was done to make the lock.
func (s pythonInstaller) projectOf(ctx context.Context, made build, in pythonInstall, l locked) ([]string, error) {
	if l.made != "" && in.project {
		return files(filepath.Join(workshop(made), "project"), ".whl")
	}
	return s.buildProject(ctx, made, in)
}

// lockedWheels returns wheels of the packages in the lock.
func (s pythonInstaller) lockedWheels(ctx context.Context, made build, in pythonInstall, lock string, l locked) ([]string, error) {
	got := filepath.Join(made.dir, "got")
	if s.server.Scripts {
		got = filepath.Join(workshop(made), "got")
		inside := filepath.Join(workshop(made), "lock.txt")
		if err := errors.Join(os.MkdirAll(workshop(made), 0o755), os.WriteFile(inside, l.text, 0o644)); err != nil {
			return nil, err
		}
		lock = inside
	}
	if l.made == "" {
		if _, err := s.download(ctx, made, in, []string{"--require-hashes", "--no-deps", "-r", lock}); err != nil {
			return nil, err
		}
	}
	if !s.server.Scripts {
		return files(got, ".whl")
	}
	all, err := files(got, "")
	if err != nil {
		return nil, err
	}
	to := filepath.Join(workshop(made), "wheels")
	if err := s.inWorkshop(ctx, made, in, append([]string{"wheel", "--no-deps", "--wheel-dir", to}, all...)...); err != nil {
		return nil, fmt.Errorf("pip: %w", err)
	}
	return files(to, ".whl")
}

// uvInstall has uv make and fill the environment.
func (s pythonInstaller) uvInstall(ctx context.Context, b build, uv string, in pythonInstall, lock string, empty bool, project []string) error {
	venv := filepath.Join(b.dir, "venv")
	into := []string{uv, "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--python", filepath.Join(venv, "bin", "python")}
	steps := [][]string{{uv, "venv", "--quiet", "--python", in.interpreter, venv}}
	if !empty {
		steps = append(steps, append(slices.Clone(into), "--require-hashes", "-r", lock))
	}
	if len(project) > 0 {
		steps = append(steps, append(slices.Clone(into), project...))
	}
	return s.steps(ctx, b, steps)
}

// pipInstall has pip make and fill the environment. It installs only wheels, which
// execute no code.
func (s pythonInstaller) pipInstall(ctx context.Context, b build, in pythonInstall, wheels []string) error {
	venv := filepath.Join(b.dir, "venv")
	first, pip := []string{in.interpreter, "-I", "-m", "venv", venv}, s.pipFor(ctx, in.interpreter, venv)
	if pip[0] == in.interpreter {
		first = []string{in.interpreter, "-I", "-m", "venv", "--without-pip", venv} // installing pip takes long
	}
	steps := [][]string{first}
	if len(wheels) > 0 {
		steps = append(steps, append(append(pip, "install", "--no-input", "--disable-pip-version-check", "--quiet", "--no-index", "--no-deps"), wheels...))
	}
	return s.steps(ctx, b, steps)
}

func (s pythonInstaller) steps(ctx context.Context, b build, steps [][]string) error {
	for _, argv := range steps {
		if _, err := (command{argv: argv, dir: b.dir, env: s.environ(), log: b.log}).run(ctx); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(argv[0]), needsScripts(err))
		}
	}
	return nil
}

// pipFor returns the beginning of a pip command line for a virtual environment. It uses
// the interpreter's pip if that supports it (since 22.3), else the environment's own
// pip.
func (s pythonInstaller) pipFor(ctx context.Context, interpreter, venv string) []string {
	python := filepath.Join(venv, "bin", "python")
	out, err := command{argv: []string{interpreter, "-I", "-m", "pip", "--version"}, env: s.environ()}.run(ctx)
	var major, minor int
	if err == nil {
		_, err = fmt.Sscanf(string(out), "pip %d.%d", &major, &minor)
	}
	if err == nil && (major > 22 || major == 22 && minor >= 3) {
		return []string{interpreter, "-I", "-m", "pip", "--python", python}
	}
	return []string{python, "-I", "-m", "pip"}
}
