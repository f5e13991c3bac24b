package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// uvVersion is the release of uv that pip installs from the package index if there is no uv in the
// PATH. The container image of boxes has the same one.
const uvVersion = "0.9.11"

// uvHashes returns the SHA-256 hashes of the wheels of uvVersion for Linux and macOS.
func uvHashes() []string {
	return []string{
		"e97906ca1b90dac91c23af20e282e2e37c8eb80c3721898733928a295f2defda", // manylinux_2_17_x86_64
		"cb680948e678590b5960744af2ecea6f2c0307dbb74ac44daf5c00e84ad8c09f", // manylinux_2_17_aarch64, musllinux_1_1_aarch64
		"edc14143d0ba086a7da4b737a77746bb36bc00e3d26466f180ea99e3bf795171", // musllinux_1_1_x86_64
		"6a31b0bd4eaec59bf97816aefbcd75cae4fcc8875c4b19ef1846b7bff3d67c70", // macosx_10_12_x86_64
		"48548a23fb5a103b8955dfafff7d79d21112b8e25ce5ff25e3468dc541b20e83", // macosx_11_0_arm64
	}
}

// uv returns the path of uv, and variables for it. If uv had to be installed, the variables have
// the settings of pip, which the user probably uses.
func (s *provisioning) uv(ctx context.Context, interpreter string) (file string, settings []string, err error) {
	if file, err := s.program("uv"); err == nil {
		return file, nil, nil
	}
	wanted := "uv==" + uvVersion + " --hash=sha256:" + strings.Join(uvHashes(), " --hash=sha256:") + "\n"
	program := func(dir string) string { return filepath.Join(dir, "bin", "uv") }
	dir, err := s.installed(ctx, recipe{
		kind: "uv", key: digest(wanted, runtime.GOOS, runtime.GOARCH), what: "uv",
		whole: func(dir string) bool { return executable(program(dir)) },
		build: func(ctx context.Context, b build) error {
			list := filepath.Join(b.dir, "uv.txt")
			if err := os.WriteFile(list, []byte(wanted), 0o644); err != nil {
				return err
			}
			python := interpreter
			if _, err := (command{argv: []string{python, "-I", "-m", "pip", "--version"}, env: s.environ()}).run(ctx); err != nil {
				venv := filepath.Join(b.dir, "pip")
				if _, err := (command{argv: []string{python, "-I", "-m", "venv", venv}, dir: b.dir, env: s.environ(), log: b.log}).run(ctx); err != nil {
					return fmt.Errorf("python3 has no pip, and makes none: %w", err)
				}
				python = filepath.Join(venv, "bin", "python")
			}
			_, err := command{
				argv: []string{
					python, "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--quiet",
					"--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", b.dir, "-r", list,
				},
				dir: b.dir, env: s.environ(), log: b.log,
			}.run(ctx)
			return err
		},
	})
	if err != nil {
		return "", nil, fmt.Errorf("no uv in PATH, and pip fetches none: install uv where boxes run: %w", err)
	}
	return program(dir), s.pipSettings(ctx, interpreter), nil
}

// pipSettings returns pip's settings for indexes, as variables of uv, without those that are
// already set.
func (s *provisioning) pipSettings(ctx context.Context, interpreter string) (settings []string) {
	// An error is ignored, because without pip there are no settings of pip.
	list, _ := command{argv: []string{interpreter, "-I", "-m", "pip", "config", "list"}, env: s.environ()}.run(ctx)
	names := map[string]string{"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS", "trusted-host": "UV_INSECURE_HOST", "cert": "SSL_CERT_FILE"}
	for line := range strings.Lines(string(list)) {
		option, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		name := names[option[strings.LastIndexByte(option, '.')+1:]]
		// pip prints the value as a Python string, in which the items of a list are on separate
		// lines.
		words := strings.Fields(strings.ReplaceAll(strings.Trim(value, `'"`), `\n`, " "))
		between := " "
		if name == "UV_FIND_LINKS" {
			between = ","
		}
		if name != "" && !slices.ContainsFunc(s.environ(), func(pair string) bool { return strings.HasPrefix(pair, name+"=") }) {
			settings = append(settings, name+"="+strings.Join(words, between))
		}
	}
	return settings
}

// runUv runs uv and returns its stdout. If w.Folder is set, code of packages may run: uv runs in a
// sandbox, in that folder.
func (s *provisioning) runUv(ctx context.Context, b build, in pythonInstall, w Workshop, args ...string) ([]byte, error) {
	uv, settings, err := s.uv(ctx, in.interpreter)
	if err != nil {
		return nil, err
	}
	// Images and stored installs do not preserve the times of files, and a process may be unable
	// to write compiled modules again. Python must therefore not compare times.
	settings = append(settings, "PYC_INVALIDATION_MODE=UNCHECKED_HASH")
	c := command{argv: append([]string{uv}, args...), dir: b.dir, env: s.environ(settings...), log: b.log}
	run := func() ([]byte, error) { return c.run(ctx) }
	if w.Folder != "" {
		// The interpreter may be a script of a version manager, which the sandbox does not have. So
		// it is asked here, outside of the sandbox, for the real interpreter.
		real, err := command{argv: []string{in.interpreter, "-I", "-c", "import sys;print(sys.executable)"}, env: s.environ()}.run(ctx)
		if err != nil {
			return nil, err
		}
		python := strings.TrimSpace(string(real))
		for i, arg := range c.argv {
			if arg == in.interpreter {
				c.argv[i] = python
			}
		}
		c.dir = w.Folder
		w.Programs = append(realPaths(uv, python), filepath.Dir(filepath.Dir(python)))
		run = func() ([]byte, error) { return s.confined(ctx, w, c, "UV_CACHE_DIR="+filepath.Join(w.Folder, "cache")) }
	}
	out, err := run()
	if err != nil {
		return nil, fmt.Errorf("uv %s: %w", strings.Join(args[:2], " "), hint(err,
			"only built packages (wheels) are installed: if there is none for this Python, "+scriptsSetting+" has the package built from its source, in a sandbox",
			"no usable wheels", "no wheels", "is disabled"))
	}
	return out, nil
}

// pythonInstall describes the contents of a virtual environment.
type pythonInstall struct {
	interpreter string
	what        string   // the text of a comment at the top of the lock
	wanted      string   // the text of a requirements file
	options     string   // those lines of wanted that name indexes
	from        string   // the folder of a project, "" for none
	folders     []folder // folders of the project that are built and installed too
}

// folder is a folder to build a package from. The field path is its path in the project, and
// extras are the extras to install, such as "[cli]".
type folder struct{ path, extras string }

// workshop makes an empty folder in which code of packages may write, below b.dir.
func workshop(b build, name string) (string, error) {
	dir := filepath.Join(b.dir, name)
	return dir, errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755))
}

// buildFolders builds the folders of the project, each in a sandbox, and returns the paths of
// their wheels.
func (s *provisioning) buildFolders(ctx context.Context, b build, in pythonInstall) (wheels []string, err error) {
	for i, f := range in.folders {
		dir, err := workshop(b, fmt.Sprintf("build-%d", i))
		if err != nil {
			return nil, err
		}
		source, to := filepath.Join(dir, "source"), filepath.Join(dir, "wheel")
		if err := errors.Join(os.Mkdir(source, 0o755), os.Mkdir(to, 0o755), refresh(ctx, in.from, source, filepath.Join(b.dir, "source.json"))); err != nil {
			return nil, err
		}
		if err := os.Remove(filepath.Join(b.dir, "source.json")); err != nil {
			return nil, err
		}
		if _, err := s.runUv(ctx, b, in, Workshop{Folder: dir}, "build", "--wheel", "--quiet", "--python", in.interpreter, "--out-dir", to, filepath.Join(source, f.path)); err != nil {
			return nil, fmt.Errorf("build of the project: %w", err)
		}
		made, err := filepath.Glob(filepath.Join(to, "*.whl"))
		if err != nil || len(made) != 1 || !isFile(made[0]) {
			return nil, errors.New("build of the project: it did not make one package (wheel)")
		}
		wheels = append(wheels, made[0])
	}
	return wheels, nil
}

// isFile reports whether a path is a regular file, and not a link to one.
func isFile(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular()
}

// resolvePython chooses the versions of all packages for an install, and returns them as
// requirements with hashes.
func (s *provisioning) resolvePython(ctx context.Context, b build, in pythonInstall) ([]byte, error) {
	wheels, err := s.buildFolders(ctx, b, in)
	if err != nil {
		return nil, err
	}
	wanted, lock := in.wanted, "# "+in.what+"\n"
	for i, wheel := range wheels {
		wanted += wheel + in.folders[i].extras + "\n"
	}
	if strings.TrimSpace(wanted) == "" {
		return []byte(lock), nil
	}
	dir, err := workshop(b, "resolve")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "wanted.txt")
	if err := os.WriteFile(file, []byte(wanted), 0o644); err != nil {
		return nil, err
	}
	args := []string{"pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes", "--python", in.interpreter}
	w := Workshop{Folder: dir, Read: append(folders(wheels), in.from)}
	if !s.server.Scripts {
		w, args = Workshop{}, append(args, "--only-binary", ":all:")
	}
	out, err := s.runUv(ctx, b, in, w, append(args, file)...)
	if err != nil {
		return nil, err
	}
	skip := false
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, " ") {
			// A folder is built anew for each install, so the hash of its wheel changes and is
			// left out.
			skip = slices.ContainsFunc(wheels, func(wheel string) bool { return strings.Contains(line, wheel) })
		}
		if !skip {
			lock += line
		}
	}
	return []byte(lock), nil
}

func folders(files []string) (all []string) {
	for _, file := range files {
		all = append(all, filepath.Dir(file))
	}
	return all
}

// buildPython makes the virtual environment b.dir/venv with the packages of the lock, and with the
// built folders of the project.
func (s *provisioning) buildPython(ctx context.Context, b build, in pythonInstall, l locked) error {
	wheels, err := s.buildFolders(ctx, b, in)
	if err != nil {
		return err
	}
	dir, err := workshop(b, "install")
	if err != nil {
		return err
	}
	lock, venv := filepath.Join(dir, "lock.txt"), filepath.Join(b.dir, "venv")
	if err := os.WriteFile(lock, append([]byte(in.options), l.text...), 0o644); err != nil {
		return err
	}
	w, into, rest := Workshop{}, venv, []string{"--only-binary", ":all:"}
	if s.server.Scripts {
		into, rest = filepath.Join(dir, "venv"), nil
		w = Workshop{Folder: dir, Read: append(folders(wheels), in.from)}
	}
	if _, err := s.runUv(ctx, b, in, w, "venv", "--quiet", "--python", in.interpreter, into); err != nil {
		return err
	}
	install := append([]string{"pip", "install", "--quiet", "--no-deps", "--python", filepath.Join(into, "bin", "python")}, rest...)
	if s.cfg.Compile {
		install = append(install, "--compile-bytecode")
	}
	if strings.Contains(string(l.text), "--hash") {
		if _, err := s.runUv(ctx, b, in, w, append(slices.Clone(install), "--require-hashes", "-r", lock)...); err != nil {
			return l.mismatch(err)
		}
	}
	if len(wheels) > 0 {
		if _, err := s.runUv(ctx, b, in, w, append(install, wheels...)...); err != nil {
			return err
		}
	}
	if s.server.Scripts {
		if err := s.takeVenv(ctx, b, in, into, venv); err != nil {
			return fmt.Errorf("take over what install scripts have made: %w", err)
		}
	}
	made, err := filepath.Glob(filepath.Join(b.dir, "build-*"))
	for _, dir := range append(made, dir) {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// takeVenv copies a virtual environment that was made in a sandbox. The copies belong to the
// runner, and no link leads out of the folder, except those to the interpreter, which uv makes
// again.
func (s *provisioning) takeVenv(ctx context.Context, b build, in pythonInstall, from, to string) error {
	if err := errors.Join(os.Mkdir(to, 0o755), copyOut(ctx, from, to)); err != nil {
		return err
	}
	if _, err := s.runUv(ctx, b, in, Workshop{}, "venv", "--quiet", "--allow-existing", "--python", in.interpreter, to); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(to, "bin"))
	for _, e := range entries {
		if e.Type().IsRegular() {
			err = errors.Join(err, reshebang(filepath.Join(to, "bin", e.Name()), from, to))
		}
	}
	return err
}
