package stage

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Versions that are not pinned are looked up once in renewAfter. When that fails,
// the install there is goes on being used, and the next try is after retryAfter.
const (
	renewAfter = 24 * time.Hour
	retryAfter = 10 * time.Minute
	renewLimit = 10 * time.Second // for asking the registry, when there is an install
)

// request is what a package runner was asked for.
type request struct {
	kind    string   // "npm" or "pypi"
	spec    string   // package with version, range or tag, as the installer takes it
	name    string   // package alone
	pinned  bool     // spec names one version
	with    []string // further packages
	python  string   // interpreter asked for, "" for any
	program string   // to execute; "" for the one of the package
	args    []string
}

// tool replaces a command of npx or uvx by the program they would have executed,
// out of an install that is kept. Command lines that are more than that stay as
// they are.
func (s *staging) tool(ctx context.Context) error {
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
		return nil // no installer here: the error of the command itself is the clearer one
	}
	if done := s.localBin(r); done {
		return nil
	}
	got, err := s.resolve(ctx, r, h)
	if err != nil {
		return installError(err)
	}
	s.launch.Command, s.launch.Args = got.Program, r.args
	if h.enter {
		s.enter(filepath.Join(got.Dir, "venv"), got.Dir)
	} else {
		s.launch.Path = append([]string{filepath.Join(got.Dir, "node_modules", ".bin")}, s.launch.Path...)
		s.launch.Reads = append(s.launch.Reads, got.Dir)
	}
	return nil
}

// localBin takes a program that the workspace depends on anyway, as npx does.
func (s *staging) localBin(r request) bool {
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

// handler is how packages of one kind are handled.
type handler struct {
	runtime string // identity of what executes the program
	enter   bool   // the install is a virtual environment
	build   func(ctx context.Context, b build, spec string) error
	// open finds version and program in an install.
	open func(dir string) (version, program string, err error)
	// newest asks the registry. It gives "" if that is the version installed.
	newest func(ctx context.Context, now resolved) (string, error)
}

// resolved is what a request has come to.
type resolved struct {
	Version string
	Dir     string
	Program string
	Checked time.Time // the registry was asked, or the install was made
	Tried   time.Time // it was asked in vain
}

func (r resolved) usable() bool {
	if r.Program == "" {
		return false
	}
	info, err := os.Stat(r.Program) // also false when an interpreter it links to is gone
	return err == nil && info.Mode()&0o111 != 0
}

func (r resolved) fresh(pinned bool, now time.Time) bool {
	return r.usable() && (pinned || now.Sub(r.Checked) < renewAfter || now.Sub(r.Tried) < retryAfter)
}

// resolve gives the install for a request: the one it came to before, without
// asking anybody, as long as that is fresh.
func (s *staging) resolve(ctx context.Context, r request, h handler) (resolved, error) {
	folder := filepath.Join(s.cfg.Cache, "resolved")
	key := digest(append([]string{"tool-1", r.kind, r.spec, r.program, r.python, h.runtime}, r.with...)...)
	file := filepath.Join(folder, key+".json")
	if known := readResolved(file); s.usable(ctx, known, r.pinned) {
		return known, nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return resolved{}, err
	}
	unlock, err := lock(ctx, filepath.Join(folder, key+".lock"), func() {
		s.say(DepInstall, "waiting for another start that installs %s", r.spec)
	})
	if err != nil {
		return resolved{}, err
	}
	defer unlock()
	known := readResolved(file)
	if s.usable(ctx, known, r.pinned) {
		return known, nil
	}
	got, err := s.renew(ctx, r, h, known, key)
	if err != nil {
		return resolved{}, err
	}
	data, err := json.Marshal(got)
	if err != nil {
		return resolved{}, err
	}
	return got, writeFile(file, data)
}

// usable says whether an install can go on being used, and if so takes it into use.
func (s *staging) usable(ctx context.Context, known resolved, pinned bool) bool {
	return known.fresh(pinned, time.Now()) && s.hold(ctx, filepath.Dir(known.Dir)) == nil && known.usable()
}

func readResolved(file string) resolved {
	var r resolved
	data, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(data, &r) != nil {
		return resolved{}
	}
	return r
}

// renew installs a package, or a newer version of it. Where there is an install it
// does not fail.
func (s *staging) renew(ctx context.Context, r request, h handler, known resolved, key string) (resolved, error) {
	if !known.usable() || s.hold(ctx, filepath.Dir(known.Dir)) != nil || !known.usable() {
		return s.fetch(ctx, r, h, key, r.spec, "")
	}
	s.say(DepInstall, "looking for a newer version of %s", r.name)
	ask, cancel := context.WithTimeout(ctx, renewLimit)
	defer cancel()
	newest, err := h.newest(ask, known)
	if err == nil && newest == "" {
		known.Checked = time.Now()
		return known, nil
	}
	if err == nil {
		var got resolved
		if got, err = s.fetch(ctx, r, h, key, r.spec, newest); err == nil {
			return got, nil
		}
	}
	s.log.Warn("package could not be renewed, the version installed is used", "package", r.name, "version", known.Version, "error", err)
	known.Tried = time.Now()
	return known, nil
}

// fetch installs spec; version only tells the install from older ones.
func (s *staging) fetch(ctx context.Context, r request, h handler, key, spec, version string) (resolved, error) {
	what := r.name
	if version != "" {
		what += " " + version
	}
	dir, err := s.installed(ctx, recipe{
		kind: r.kind, key: digest(key, version), what: what,
		build: func(ctx context.Context, b build) error {
			if err := h.build(ctx, b, spec); err != nil {
				return err
			}
			_, _, err := h.open(b.dir)
			return err
		},
		whole: func(dir string) bool {
			_, program, err := h.open(dir)
			return err == nil && resolved{Program: program}.usable()
		},
	})
	if err != nil {
		return resolved{}, err
	}
	got := resolved{Dir: dir, Checked: time.Now()}
	got.Version, got.Program, err = h.open(dir)
	return got, err
}

// # Command lines

// parseTool reads the command line of a package runner; ok is false for any other,
// and for one with options that do more than name a package.
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

// option takes an option and its value from the front of args: "--name value",
// "--name=value", and with one letter "-n value".
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
	if len(args) == 0 {
		return r, false
	}
	if r.spec == "" {
		r.spec = args[0]
	} else {
		r.program = args[0]
	}
	r.args = args[1:]
	at := strings.LastIndexByte(r.spec, '@')
	r.name = r.spec
	if at > 0 {
		r.name = r.spec[:at]
		r.pinned = exactVersion(r.spec[at+1:])
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
	if len(args) == 0 {
		return r, false
	}
	if r.spec == "" {
		r.spec = args[0]
	} else {
		r.program = args[0]
	}
	r.args = args[1:]
	r.spec, r.name, r.pinned = pypiSpec(r.spec)
	if r.program == "" {
		r.program = r.name
	}
	ok := r.name != "" && pypiName().MatchString(r.program) && safeSpec(r.spec)
	for _, w := range r.with {
		_, name, _ := pypiSpec(w)
		ok = ok && name != "" && safeSpec(w)
	}
	return r, ok
}

// pypiSpec turns the forms of uvx (name@version, name@latest) into those of pip.
func pypiSpec(spec string) (pip, name string, pinned bool) {
	name = pypiName().FindString(spec)
	base, version, at := strings.Cut(spec, "@")
	switch rest := strings.TrimSpace(version); {
	case !at:
	case strings.ContainsAny(rest, "/:"):
		return spec, "", false // an address
	case rest == "latest":
		spec = base
	default:
		spec = base + "==" + rest
	}
	_, exact, is := strings.Cut(spec, "==")
	return spec, name, is && exactVersion(exact) && !strings.ContainsAny(spec, ",;")
}

// exactVersion says whether a version names one release.
func exactVersion(v string) bool {
	return v != "" && strings.Contains(v, ".") && regexp.MustCompile(`^v?[0-9]+(\.[0-9]+)+[-+.0-9A-Za-z]*$`).MatchString(v) &&
		!strings.HasSuffix(v, ".x") && !strings.HasSuffix(v, ".*")
}

// npmName is a package of the registry; what else npx takes, such as addresses of
// repositories, is none.
func npmName() *regexp.Regexp {
	return regexp.MustCompile(`^(@[A-Za-z0-9._~-]+/)?[A-Za-z0-9_~][A-Za-z0-9._~-]*$`)
}

func pypiName() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*`) }

// safeSpec refuses what an installer would take for an option, a path or an
// address.
func safeSpec(spec string) bool {
	rest := strings.TrimPrefix(spec, "@")
	return !strings.HasPrefix(spec, "-") && !strings.HasPrefix(rest, ".") && !strings.ContainsAny(rest, ":\\") &&
		strings.Count(rest, "/") <= strings.Count(spec[:1], "@") && strings.TrimSpace(spec) == spec
}

// unscoped is the name without its scope, which is what its program is called.
func unscoped(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }
