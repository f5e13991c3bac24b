package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// npm handles packages of the npm registry; ok is false where there is no npm.
func (s *staging) npm(r request) (h handler, ok bool) {
	npm, err := s.program("npm")
	if err != nil {
		return h, false
	}
	node, err := s.program("node")
	if err != nil {
		return h, false
	}
	h.runtime, _ = identity(node)
	quiet := []string{"--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"}
	h.build = func(ctx context.Context, b build, spec string) error {
		// Without a package.json npm would look for one in the folders above.
		if err := os.WriteFile(filepath.Join(b.dir, "package.json"), []byte(`{"private":true}`), 0o644); err != nil {
			return err
		}
		argv := append([]string{npm, "install", "--save-exact"}, quiet...)
		_, err := command{argv: append(argv, spec), dir: b.dir, env: s.environ(), log: b.log}.run(ctx)
		if err != nil {
			return fmt.Errorf("npm install %s: %w", spec, err)
		}
		return nil
	}
	h.open = func(dir string) (string, string, error) { return openNpm(dir, r) }
	h.newest = func(ctx context.Context, now resolved) (string, error) {
		argv := append([]string{npm, "view", r.spec, "version", "--json", "--fetch-retries=0", "--prefer-online"}, quiet...)
		out, err := command{argv: argv, env: s.environ()}.run(ctx)
		if err != nil {
			return "", err
		}
		return newestNpm(out, now.Version)
	}
	return h, true
}

// newestNpm reads what npm view says: one version, or for a range all that fit in
// the order of their release. It is "" if that is the version installed.
func newestNpm(out []byte, installed string) (string, error) {
	var one string
	if json.Unmarshal(out, &one) != nil {
		var all []string
		if err := json.Unmarshal(out, &all); err != nil || len(all) == 0 {
			return "", errors.New("npm view gave no version")
		}
		one = all[len(all)-1]
	}
	if one == installed {
		return "", nil
	}
	return one, nil
}

// openNpm finds the program of a package in an install.
func openNpm(dir string, r request) (version, program string, err error) {
	data, err := os.ReadFile(filepath.Join(dir, "node_modules", filepath.FromSlash(r.name), "package.json"))
	if err != nil {
		return "", "", fmt.Errorf("package %s is not in its install: %w", r.name, err)
	}
	var p struct {
		Version string          `json:"version"`
		Bin     json.RawMessage `json:"bin"`
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return "", "", fmt.Errorf("package.json of %s: %w", r.name, err)
	}
	name, err := chooseBin(p.Bin, r)
	if err != nil {
		return "", "", err
	}
	return p.Version, filepath.Join(dir, "node_modules", ".bin", name), nil
}

// chooseBin finds the program npx would execute: the one asked for, the only one
// there is, or the one with the name of the package.
func chooseBin(bin json.RawMessage, r request) (string, error) {
	want := unscoped(r.name)
	var one string
	if json.Unmarshal(bin, &one) == nil && one != "" {
		if r.program != "" {
			want = r.program
		}
		return want, nil
	}
	var many map[string]string
	_ = json.Unmarshal(bin, &many) // without programs, it is empty
	if r.program != "" {
		return r.program, nil // it may belong to a dependency
	}
	if len(many) == 1 {
		for name := range many {
			want = name
		}
	}
	if many[want] == "" || !filepath.IsLocal(want) {
		return "", fmt.Errorf("package %s has no program %s: name one with --package %s and the program", r.name, want, r.spec)
	}
	return want, nil
}

// pypi handles packages of the Python index; ok is false where there is no Python.
func (s *staging) pypi(r request) (h handler, ok bool) {
	hint := r.python
	if hint != "" && !strings.HasPrefix(hint, "python") {
		hint = "python" + hint // "3.11"
	}
	interpreter, err := s.interpreter(hint)
	if err != nil || hint != "" && filepath.Base(interpreter) != hint {
		return h, false
	}
	h.runtime, _ = identity(interpreter)
	h.enter = true
	h.build = func(ctx context.Context, b build, spec string) error {
		return s.venv(ctx, b, interpreter, b.dir, append([]string{spec}, r.with...))
	}
	h.open = func(dir string) (string, string, error) {
		program := filepath.Join(dir, "venv", "bin", r.program)
		if _, err := os.Stat(program); err != nil || !filepath.IsLocal(r.program) {
			return "", "", fmt.Errorf("package %s has no program %s: name it with --from %s and the program", r.name, r.program, r.spec)
		}
		if !wholeVenv(dir) {
			return "", "", errors.New("the interpreter of the virtual environment is gone")
		}
		version, err := installedVersion(filepath.Join(dir, "venv"), r.name)
		return version, program, err
	}
	h.newest = func(ctx context.Context, now resolved) (string, error) {
		return s.newestPypi(ctx, interpreter, filepath.Join(now.Dir, "venv"), r)
	}
	return h, true
}

// newestPypi asks the installer what it would do to bring the package up to date.
func (s *staging) newestPypi(ctx context.Context, interpreter, venv string, r request) (string, error) {
	if uv, err := s.program("uv"); err == nil {
		// It tells what it would do on stderr, which is all this reads.
		var said head
		said.left = maxAnswer
		argv := []string{uv, "pip", "install", "--python", filepath.Join(venv, "bin", "python"), "--dry-run", "--no-deps", "--upgrade", "--color=never", r.spec}
		if _, err := (command{argv: argv, env: s.environ(), log: &said}).run(ctx); err != nil {
			return "", err
		}
		for line := range strings.Lines(said.data.String()) {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "+ "); ok {
				_, version, _ := strings.Cut(rest, "==")
				return version, nil
			}
		}
		return "", nil
	}
	argv := append(s.pip(ctx, interpreter, venv),
		"install", "--no-input", "--disable-pip-version-check", "--quiet", "--retries", "0",
		"--dry-run", "--no-deps", "--upgrade", "--report", "-", r.spec)
	out, err := command{argv: argv, env: s.environ()}.run(ctx)
	if err != nil {
		return "", err
	}
	var report struct {
		Install []struct {
			Metadata struct {
				Version string `json:"version"`
			} `json:"metadata"`
		} `json:"install"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return "", fmt.Errorf("report of pip: %w", err)
	}
	if len(report.Install) == 0 {
		return "", nil
	}
	return report.Install[0].Metadata.Version, nil
}

// installedVersion reads the version of a package from the name of the folder in
// which a virtual environment describes it.
func installedVersion(venv, name string) (string, error) {
	folders, err := filepath.Glob(filepath.Join(venv, "lib", "python*", "site-packages", "*.dist-info"))
	if err != nil {
		return "", err
	}
	for _, f := range folders {
		have, version, _ := strings.Cut(strings.TrimSuffix(filepath.Base(f), ".dist-info"), "-")
		if normal(have) == normal(name) {
			return version, nil
		}
	}
	return "", fmt.Errorf("package %s is not in its install: %w", name, fs.ErrNotExist)
}

// normal makes names equal that the index takes for the same.
func normal(name string) string {
	return strings.NewReplacer("_", "-", ".", "-").Replace(strings.ToLower(name))
}
