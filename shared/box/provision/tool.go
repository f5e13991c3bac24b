package provision

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// request is a parsed command line of npx or uvx.
type request struct {
	kind    string   // "npm" or "pypi"
	word    string   // the package as the command line names it
	spec    string   // the package with its version, range or tag, in the form for the installer
	name    string   // the package without a version
	with    []string // further packages
	python  string   // the Python that the command line names, "" for any
	program string   // the program of the package; "" for the one that npx would choose
	args    []string // the arguments of the program
}

// tool replaces a command of npx or uvx with the program that npx or uvx would execute, and
// installs the package if necessary.
func (s *provisioning) tool(ctx context.Context) error {
	r, ok := parseTool(s.launch.Command, s.launch.Args)
	if !ok {
		return nil
	}
	handle := s.npm
	if r.kind == "pypi" {
		handle = s.pypi
	}
	h, ok := handle(r)
	if !ok {
		return nil // there is no installer, so the start of the command itself fails with a clearer error
	}
	if s.localBin(r) {
		return nil
	}
	dir, program, err := s.fetch(ctx, r, h)
	if err != nil {
		return installError(full(s.cfg.Cache, err))
	}
	s.launch.Command, s.launch.Args = program, r.args
	if h.enter {
		s.enter(filepath.Join(dir, "venv"), dir)
	} else {
		s.launch.Path = append([]string{filepath.Join(dir, "node_modules", ".bin")}, s.launch.Path...)
		s.launch.Reads, s.launch.Unrun = append(s.launch.Reads, dir), unrun(dir)
	}
	return nil
}

// localBin makes the launch execute a program of the workspace's own dependencies, as npx does, or
// returns false if there is none.
func (s *provisioning) localBin(r request) bool {
	if r.kind != "npm" || r.spec != r.name || s.host == "" {
		return false
	}
	file := filepath.Join(s.launch.Workspace, "node_modules", ".bin", unscoped(r.name))
	if _, err := os.Stat(file); err != nil {
		return false
	}
	s.launch.Command, s.launch.Args = file, r.args
	return true
}

// handler has the operations for the requests of one kind: npm or pypi.
type handler struct {
	runtime string // identity of the interpreter of the program
	enter   bool   // the install is a virtual environment
	// lock returns the name of the lock (see [locked]) for the request.
	lock func(ctx context.Context) (string, error)
	// resolve chooses versions, and returns the text of a new lock. The folder b.dir is empty.
	resolve func(ctx context.Context, b build) (lock []byte, err error)
	// build installs the packages of a lock into b.dir, which is empty.
	build func(ctx context.Context, b build, l locked) error
	// open returns the path of the program in an install.
	open func(dir string) (program string, err error)
}

// fetch returns the install for a request, and the program in it. The packages are those of the
// request's lock (see [locked]), which the first start makes. The version of a package stays the
// same until an operator removes the lock, even if the request names no version.
func (s *provisioning) fetch(ctx context.Context, r request, h handler) (dir, program string, err error) {
	if dir, program, ok := s.baked(r, h); ok {
		return dir, program, nil
	}
	if s.cfg.Kept != nil {
		return s.fetchKept(ctx, r, h)
	}
	l, err := s.lockOf(ctx, r, h)
	if err != nil {
		return "", "", r.unknown(err)
	}
	key := digest("tool-3", r.kind, r.program, h.runtime, fmt.Sprint(s.server.Scripts), string(l.text))
	return s.open(ctx, h, recipe{
		kind: r.kind, key: key, what: counted(r, l),
		build: func(ctx context.Context, b build) error { return s.fill(ctx, b, r, h, l) },
	})
}

// counted returns the name of a package, with the number of all packages in its lock.
func counted(r request, l locked) string {
	n := 0
	if all, err := npmPackages(l.text); err == nil {
		n = len(all) - 1 // all but the project itself
	} else {
		for line := range strings.Lines(string(l.text)) {
			if strings.Contains(line, "==") {
				n++
			}
		}
	}
	if n < 2 {
		return r.name
	}
	return fmt.Sprintf("%d packages of %s", n, r.name)
}

func (s *provisioning) lockOf(ctx context.Context, r request, h handler) (locked, error) {
	name, err := h.lock(ctx)
	if err != nil {
		return locked{}, err
	}
	return s.locked(ctx, name, r.name, h.resolve)
}

// open makes an install if necessary, and returns the program in it.
func (s *provisioning) open(ctx context.Context, h handler, rec recipe) (dir, program string, err error) {
	rec.whole = func(dir string) bool {
		program, err := h.open(dir)
		return err == nil && executable(program)
	}
	if dir, err = s.installed(ctx, rec); err != nil {
		return "", "", err
	}
	program, err = h.open(dir)
	return dir, program, err
}

// fill installs the packages of a lock into b.dir, and checks that the program can be executed.
func (s *provisioning) fill(ctx context.Context, b build, r request, h handler, l locked) error {
	if err := h.build(ctx, b, l); err != nil {
		return err
	}
	program, err := h.open(b.dir)
	if err == nil && !executable(program) {
		err = fmt.Errorf("package %s has no program %s: nothing that can be executed is there", r.name, filepath.Base(program))
	}
	return err
}

func executable(program string) bool {
	info, err := os.Stat(program) // also fails if the program is a link to an interpreter that does not exist any more
	return err == nil && info.Mode()&0o111 != 0
}

// # Command lines

// parseTool parses a command line of npx or uvx. The result ok is false for any other command
// line, and for one with options that do more than name packages.
func parseTool(cmd string, args []string) (r request, ok bool) {
	if strings.Contains(cmd, "/") && !filepath.IsAbs(cmd) {
		return r, false // a program of the workspace
	}
	switch filepath.Base(cmd) {
	case "npx":
		return parseNpx(args)
	case "uvx":
		return parseUvx(args)
	case "uv":
		if len(args) > 2 && args[0] == "tool" && args[1] == "run" {
			return parseUvx(args[2:])
		}
	}
	return r, false
}

// Package is the package that a command line of npx or uvx starts.
type Package struct {
	Kind string   // "npm" or "pypi"
	Name string   // without a version
	Word string   // the package as the command line names it, perhaps with a version, a range or a tag
	Args []string // the arguments of the package's program
}

// PackageOf parses a command line. The result ok is false if the command line starts no package of
// a registry, or has options that [Provisioner.Provision] does not handle itself.
func PackageOf(command string, args []string) (p Package, ok bool) {
	r, ok := parseTool(command, args)
	return Package{Kind: r.kind, Name: r.name, Word: r.word, Args: r.args}, ok
}

// Needs returns the program that must be installed on this machine for a command line. A package
// of PyPI needs only Python.
func Needs(command string, args []string) string {
	if r, ok := parseTool(command, args); ok && r.kind == "pypi" {
		return "python3"
	}
	return command
}

// option removes an option with its value from the front of args: "--name value", "--name=value",
// or "-n value". The result ok is false if args does not begin with an option of these names.
func option(args []string, names ...string) (value string, rest []string, ok bool) {
	name, value, joined := strings.Cut(args[0], "=")
	switch {
	case !slices.Contains(names, name):
		return "", args, false
	case joined:
		return value, args[1:], true
	case len(args) < 2:
		return "", args, false
	}
	return args[1], args[2:], true
}

// take parses what follows the options of npx or uvx: the package, or the program if an option has
// named the package, and then the arguments.
func (r *request) take(args []string) bool {
	if len(args) == 0 {
		return false
	}
	if r.spec == "" {
		r.spec = args[0]
	} else {
		r.program = args[0]
	}
	r.args, r.word = args[1:], r.spec
	return true
}

func parseNpx(args []string) (request, bool) {
	r := request{kind: "npm"}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if args[0] == "--" {
			args = args[1:]
			break
		}
		switch args[0] {
		case "-y", "--yes", "-q", "--quiet":
			args = args[1:]
			continue
		}
		value, rest, ok := option(args, "-p", "--package")
		if !ok || r.spec != "" {
			return r, false
		}
		r.spec, args = value, rest
	}
	if !r.take(args) {
		return r, false
	}
	r.name = r.spec
	if at := strings.LastIndexByte(r.spec, '@'); at > 0 {
		r.name = r.spec[:at]
	}
	return r, npmName().MatchString(r.name) && safeSpec(r.spec)
}

func parseUvx(args []string) (request, bool) {
	r := request{kind: "pypi"}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if args[0] == "-q" || args[0] == "--quiet" {
			args = args[1:]
			continue
		}
		value, rest, ok := option(args, "--from", "--with", "--python", "-p")
		if !ok {
			return r, false
		}
		switch name, _, _ := strings.Cut(args[0], "="); name {
		case "--from":
			r.spec = value
		case "--with":
			r.with = append(r.with, strings.Split(value, ",")...)
		default:
			r.python = value
		}
		args = rest
	}
	if !r.take(args) {
		return r, false
	}
	r.spec, r.name = pypiSpec(r.spec)
	if r.program == "" {
		r.program = r.name
	}
	ok := r.name != "" && pypiName().MatchString(r.program) && safeSpec(r.spec)
	for _, w := range r.with {
		_, name := pypiSpec(w)
		ok = ok && name != "" && safeSpec(w)
	}
	return r, ok
}

// pypiSpec converts the forms of uvx (name@version, name@latest) into those of pip. The result
// name is "" if spec is a URL or a path.
func pypiSpec(spec string) (pip, name string) {
	name = pypiName().FindString(spec)
	base, version, at := strings.Cut(spec, "@")
	switch rest := strings.TrimSpace(version); {
	case !at:
	case strings.ContainsAny(rest, "/:"):
		return spec, "" // a URL or a path
	case rest == "latest":
		spec = base
	default:
		spec = base + "==" + rest
	}
	return spec, name
}

// npmName matches the name of a package in the registry.
func npmName() *regexp.Regexp {
	return regexp.MustCompile(`^(@[A-Za-z0-9._~-]+/)?[A-Za-z0-9_~][A-Za-z0-9._~-]*$`)
}

func pypiName() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*`) }

// safeSpec returns false for a spec that an installer would take for an option, a path or a URL.
func safeSpec(spec string) bool {
	rest := strings.TrimPrefix(spec, "@")
	return !strings.HasPrefix(spec, "-") && !strings.HasPrefix(rest, ".") && !strings.ContainsAny(rest, ":\\") &&
		strings.Count(rest, "/") <= strings.Count(spec[:1], "@") && strings.TrimSpace(spec) == spec
}

// unscoped returns a package's name without the scope. The package's program has this name by
// default.
func unscoped(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }
