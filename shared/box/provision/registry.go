package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// npm returns the handler for packages of the npm registry. The result ok is false if this machine
// has no npm or no node.
func (s *provisioning) npm(r request) (h handler, ok bool) {
	npm, err := s.program("npm")
	if err != nil {
		return h, false
	}
	node, err := s.program("node")
	if err != nil {
		return h, false
	}
	h.runtime, _ = identity(node)
	h.lock = func(context.Context) (string, error) { return lockName(r.kind, r.spec), nil }
	h.resolve = func(ctx context.Context, b build) ([]byte, error) {
		// Without a package.json here, npm would look for one in the folders above.
		if err := os.WriteFile(filepath.Join(b.dir, "package.json"), []byte(`{"private":true}`), 0o644); err != nil {
			return nil, err
		}
		return s.npmLock(ctx, b, npm, "--save-exact", r.spec)
	}
	h.build = func(ctx context.Context, b build, l locked) error {
		top, err := npmTop(l.text)
		if err != nil {
			return fmt.Errorf("lock %s: %w", l.name, err)
		}
		for name, data := range map[string][]byte{"package.json": top, "package-lock.json": l.text} {
			if err := os.WriteFile(filepath.Join(b.dir, name), data, 0o644); err != nil {
				return err
			}
		}
		return l.mismatch(s.npmCI(ctx, b, npm, node))
	}
	h.open = func(dir string) (string, error) { return openNpm(dir, r) }
	return h, true
}

// npmCommand returns a command line of npm. Its options keep npm from executing code of packages, or
// programs that the settings of a project name.
func npmCommand(npm string, args ...string) []string {
	return append([]string{npm, args[0], "--ignore-scripts", "--git=git", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"}, args[1:]...)
}

// npmLock resolves the packages of the package.json in b.dir and those in args, and returns the
// package-lock.json.
func (s *provisioning) npmLock(ctx context.Context, b build, npm string, args ...string) ([]byte, error) {
	argv := npmCommand(npm, append([]string{"install", "--package-lock-only", "--package-lock=true"}, args...)...)
	if _, err := (command{argv: argv, dir: b.dir, env: s.environ(), log: b.log}).run(ctx); err != nil {
		return nil, fmt.Errorf("npm install: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(b.dir, "package-lock.json"))
	if err != nil {
		return nil, err
	}
	return text, hashed(text)
}

// npmCI installs the packages of the package-lock.json in b.dir.
func (s *provisioning) npmCI(ctx context.Context, b build, npm, node string) error {
	// With its usual pauses npm would take minutes to give up a file with wrong bytes. It may not prefer
	// its cache: of a lock without URLs (omit-lockfile-registry-resolved) it would find no new version.
	if _, err := (command{argv: npmCommand(npm, "ci", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=10000"), dir: b.dir, env: s.environ(), log: b.log}).run(ctx); err != nil {
		return fmt.Errorf("npm ci: %w", err)
	}
	// The .npmrc may contain a token, and other users and scripts can read the install.
	if err := os.Remove(filepath.Join(b.dir, ".npmrc")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	scripts := withScripts(b.dir)
	switch {
	case len(scripts) == 0:
		return nil
	case s.server.Scripts:
		return s.runScripts(ctx, b, npm, node)
	}
	s.log.Info("install scripts are not run", "packages", scripts, "setting", scriptsSetting)
	return os.WriteFile(filepath.Join(b.dir, unrunFile), []byte(strings.Join(scripts, "\n")), 0o644)
}

// npmPackages returns the packages in a package-lock.json, by their folders.
func npmPackages(lock []byte) (map[string]npmPackage, error) {
	var l struct {
		Packages map[string]npmPackage `json:"packages"`
	}
	err := json.Unmarshal(lock, &l)
	return l.Packages, err
}

type npmPackage struct {
	Link         bool              `json:"link"`
	InBundle     bool              `json:"inBundle"`
	Resolved     string            `json:"resolved"`
	Integrity    string            `json:"integrity"`
	Dependencies map[string]string `json:"dependencies"`
}

// npmTop returns a package.json that fits a package-lock.json.
func npmTop(lock []byte) ([]byte, error) {
	all, err := npmPackages(lock)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"private": true, "dependencies": all[""].Dependencies})
}

// hashed returns an error if a package-lock.json does not determine the bytes of each package. The
// commit of a repository counts as a hash.
func hashed(lock []byte) error {
	all, err := npmPackages(lock)
	if err != nil {
		return fmt.Errorf("package-lock.json: %w", err)
	}
	for _, folder := range slices.Sorted(maps.Keys(all)) {
		if p := all[folder]; folder != "" && !p.Link && !p.InBundle && p.Integrity == "" && !strings.HasPrefix(p.Resolved, "git") {
			return fmt.Errorf("the registry gives no hash for %s, so that it could not be told from another package", folder)
		}
	}
	return nil
}

// openNpm finds the program of a package in an install.
func openNpm(dir string, r request) (program string, err error) {
	data, err := os.ReadFile(filepath.Join(dir, "node_modules", filepath.FromSlash(r.name), "package.json"))
	if err != nil {
		return "", fmt.Errorf("package %s is not in its install: %w", r.name, err)
	}
	var p struct {
		Bin json.RawMessage `json:"bin"`
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return "", fmt.Errorf("package.json of %s: %w", r.name, err)
	}
	name, err := chooseBin(p.Bin, r)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "node_modules", ".bin", name), nil
}

// chooseBin returns the name of the program that npx would execute: the program that the request
// names, or the only one of the package, or the one with the name of the package. The argument bin
// is the member bin of package.json: one path, or an object of paths by name.
func chooseBin(bin json.RawMessage, r request) (string, error) {
	if r.program != "" {
		return r.program, nil // may be a program of a dependency, which bin does not list
	}
	want := unscoped(r.name)
	var one string
	if json.Unmarshal(bin, &one) == nil && one != "" {
		return want, nil
	}
	var many map[string]string
	_ = json.Unmarshal(bin, &many) // many stays empty if the package has no programs
	switch len(many) {
	case 0:
		return "", fmt.Errorf("package %s has no program %s: nothing that can be executed is there", r.name, want)
	case 1:
		for name := range many {
			want = name
		}
	}
	if many[want] == "" || !filepath.IsLocal(want) {
		return "", fmt.Errorf("package %s has no program %s: name one with --package %s and the program", r.name, want, r.spec)
	}
	return want, nil
}

// pypi returns the handler for packages of the Python index. The result ok is false if this
// machine does not have the Python that the request names.
func (s *provisioning) pypi(r request) (h handler, ok bool) {
	hint := r.python
	if hint != "" && !strings.HasPrefix(hint, "python") {
		hint = "python" + hint // for a version such as "3.11"
	}
	interpreter, err := s.interpreter(hint)
	if err != nil || hint != "" && filepath.Base(interpreter) != hint {
		return h, false
	}
	h.runtime, _ = identity(interpreter)
	h.enter = true
	wanted := append([]string{r.spec}, r.with...)
	in := pythonInstall{interpreter: interpreter, what: strings.Join(wanted, " "), wanted: strings.Join(wanted, "\n") + "\n"}
	h.lock = func(ctx context.Context) (string, error) {
		// The version is cached even if the interpreter is a script, so that later starts do not
		// ask again.
		version, err := s.ask(ctx, true, interpreter, "-I", "-c", pythonVersion)
		return lockName(r.kind, r.spec, append([]string{platform(version)}, r.with...)...), err
	}
	h.resolve = func(ctx context.Context, b build) ([]byte, error) {
		return s.resolvePython(ctx, b, in)
	}
	h.build = func(ctx context.Context, b build, l locked) error {
		return s.buildPython(ctx, b, in, l)
	}
	h.open = func(dir string) (string, error) {
		program := filepath.Join(dir, "venv", "bin", r.program)
		if _, err := os.Stat(program); err != nil || !filepath.IsLocal(r.program) {
			return "", fmt.Errorf("package %s has no program %s: name it with --from %s and the program", r.name, r.program, r.spec)
		}
		if !wholeVenv(dir) {
			return "", errors.New("the interpreter of the virtual environment is gone")
		}
		return program, nil
	}
	return h, true
}
