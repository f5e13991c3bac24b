package runner

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// Keeper is the program that runs a sealed server in a virtual kernel; see infra/keeper.
const Keeper = "dormouse-keeper"

// Needs returns the program that must be installed on this machine to start a server: the server's
// own program, the one that its package needs, or [Keeper]. The argument path is the machine's
// PATH, and folder is that of the servers file.
func Needs(s serversfile.Server, path, folder string) string {
	program := provision.Needs(s.Command, s.Args)
	if _, ok, err := s.Sealable(); !ok || err != nil {
		if _, missing := findKeeper(cmp.Or(s.Env["PATH"], path)); s.Box.Sealed && err == nil && missing != nil {
			return Keeper
		}
		return program
	}
	_, missing := box.LookPath(s.Command, cmp.Or(s.Env["PATH"], path), cmp.Or(s.Cwd, folder))
	if s.Box.Sealed || missing != nil {
		return Keeper
	}
	return program
}

// Find returns the path of the program that [Needs] returns. It searches where a box of the server
// would. The error is written for the user.
func Find(s serversfile.Server, path, folder string) (string, error) {
	program := Needs(s, path, folder)
	path = cmp.Or(s.Env["PATH"], path)
	if program == Keeper {
		return findKeeper(path)
	}
	return box.LookPath(program, path, cmp.Or(s.Cwd, folder))
}

// sealed returns the server as it must be started on this machine. It makes the keeper run a server
// that is configured as "docker run" if the server must be sealed, or if the machine lacks that
// command. If any other server must be sealed, the result keeper is the path of the keeper, for
// [inSeal].
func sealed(s serversfile.Server, at setup) (_ serversfile.Server, keeper string, _ error) {
	c, ok, err := s.Sealable()
	if !s.Box.Sealed && (!ok || at.image != nil) {
		return s, "", nil
	}
	path := cmp.Or(s.Env["PATH"], at.own["PATH"])
	if _, missing := box.LookPath(s.Command, path, s.Cwd); !s.Box.Sealed && missing == nil {
		return s, "", nil
	}
	wish := "sealed"
	switch {
	case s.Box.Memory:
		wish = `memory: "keep" needs a seal`
	case s.Box.Hosts != nil:
		wish = "network: a list of hosts needs a seal"
	case !s.Box.Sealed:
		wish = fmt.Sprintf("%s is not on the PATH, and without it", filepath.Base(s.Command))
	}
	switch {
	case err != nil:
		return s, "", fmt.Errorf("%s: %w", wish, err)
	case s.Box.Memory && (at.image != nil || at.logs == ""):
		return s, "", fmt.Errorf("%s, which a box on AWS does not have yet: leave memory out, or let the server run on a Linux machine", wish)
	case s.Box.Memory && slices.ContainsFunc(c.Folders, func(f string) bool { return !strings.HasSuffix(f, ":ro") }):
		return s, "", errors.New(`memory: "keep" does not fit a folder that docker run gives the server to write in, because others may change it while the server sleeps: add :ro to its -v, or leave memory out`)
	case s.Box.Hosts != nil && (at.image != nil || at.logs == ""):
		return s, "", fmt.Errorf("%s, which a box on AWS does not have yet: write \"on\" or \"off\", or let the server run on a Linux machine", wish)
	case at.image != nil || at.logs == "":
		return s, "", errors.New("sealed: a box on AWS is a task of its own and has no seal yet: leave sealed out, or let the server run on a Linux machine")
	case c.Platform != "" && c.Platform != "linux/"+runtime.GOARCH:
		return s, "", fmt.Errorf("%s: docker run --platform %s: this machine is linux/%s", wish, c.Platform, runtime.GOARCH)
	}
	keeper, err = findKeeper(path)
	if err != nil {
		return s, "", fmt.Errorf("%s: %w", wish, err)
	}
	if err := hide(); err != nil { // the server may break out of its virtual kernel
		return s, "", fmt.Errorf("%s: %w", wish, err)
	}
	if !ok {
		return s, keeper, nil
	}
	s, err = byKeeper(s, c, keeper, filepath.Join(at.cache, "images"))
	return s, "", err
}

// byKeeper returns the server with a command that runs the keeper. The keeper gets the values of
// variables in its environment, and only their names in its arguments, because every user can read
// arguments.
func byKeeper(s serversfile.Server, c serversfile.Container, keeper, store string) (serversfile.Server, error) {
	env, err := variables(c)
	if err != nil {
		return s, err
	}
	b := &s.Box
	args := []string{"run", "--system"}
	if c.Image != "" {
		args = []string{"run", "--store", store}
	}
	add := func(flag string, values ...string) {
		for _, v := range values {
			args = append(args, "--"+flag, v)
		}
	}
	text := func(flag, value string) {
		if value != "" {
			add(flag, value)
		}
	}
	number := func(flag string, values ...int) { // adds the flag with the smallest positive value; 0 means no limit
		values = slices.DeleteFunc(values, func(n int) bool { return n <= 0 })
		if len(values) > 0 {
			add(flag, strconv.Itoa(slices.Min(values)))
		}
	}
	text("user", c.User)
	text("entrypoint", c.Entrypoint)
	text("workdir", c.Cwd)
	add("env", slices.Sorted(maps.Keys(env))...)
	add("folder", c.Folders...)
	add("tmpfs", c.Tmpfs...)
	number("memory", c.MemoryMB, b.MemoryMB)
	number("cpus", c.CPUs, int(b.CPUs+0.999))
	number("pids", c.Pids, b.Pids)
	if c.Always {
		add("pull", "always")
	}
	switch {
	case c.Offline || b.Offline:
		add("network", "off")
	case b.Hosts != nil:
		add("host", b.Hosts...)
		number("tell", box.RefusalsFile)
	}
	if c.ReadOnly || b.ReadOnlyRootFS {
		args = append(args, "--read-only")
	}
	if b.Memory {
		number("control", box.ControlFile)
		add("stable", c.Stable...)
	}
	switch {
	case c.Image == "":
	case b.HostPath != "": // the server works in the host path or in a copy of it
		add("folder", serversfile.WorkspaceVariable+":"+serversfile.WorkspaceVariable)
		if c.Cwd == "" {
			add("workdir", serversfile.WorkspaceVariable)
		}
	case b.Snapshot != serversfile.SnapshotOff && !c.ReadOnly && !b.ReadOnlyRootFS:
		add("written", serversfile.WorkspaceVariable+"/written")
	}
	if args = append(args, "--"); c.Image != "" {
		args = append(args, c.Image)
	}
	s.Command, s.Args, s.Env = keeper, append(args, c.Args...), env
	// The keeper enforces these limits, and could not work in a sandbox that enforces them.
	b.Offline, b.ReadOnlyRootFS, b.Guest = false, false, false
	b.MemoryMB, b.CPUs, b.Pids, b.Profile = 0, 0, 0, ""
	return s, nil
}

// inSeal prepares processes of a sealed server that has no container image, for the keeper. These
// processes can read the programs of this machine, what was installed for them, and what their
// arguments name. They can write to their workspace.
type inSeal struct {
	*provision.Provisioner
	*confiner
	server serversfile.Server
	keeper string
}

// Provision implements box.Provisioner.
func (p inSeal) Provision(ctx context.Context, process string, tell func(provision.Progress), restore provision.Restore) (provision.Launch, error) {
	l, err := p.Provisioner.Provision(ctx, process, tell, restore)
	if err != nil {
		return l, err
	}
	c := serversfile.Container{Cwd: l.Cwd, Args: append([]string{l.Command}, l.Args...), Env: map[string]string{"LANG": ""}}
	for _, env := range []map[string]string{p.env, l.Env, p.server.Env} {
		maps.Copy(c.Env, env)
	}
	if _, own := p.server.Env["HOME"]; !own {
		delete(c.Env, "HOME")
	}
	users := named(l.Args) // files and folders that a user may change while the process runs or sleeps
	if filepath.IsAbs(l.Cwd) {
		users = append(users, existing(filepath.Clean(l.Cwd))...)
	}
	fixed := slices.Concat(programs(), l.Reads, p.ways(l), p.certificates())
	all := slices.Concat(users, fixed)
	slices.Sort(all)
	for _, at := range slices.Compact(all) {
		mode := ":fixed"
		if slices.Contains(users, at) && !slices.Contains(fixed, at) {
			mode = ":ro"
		}
		if top, _, _ := strings.Cut(strings.TrimPrefix(at, "/"), "/"); !slices.Contains([]string{"proc", "sys", "dev"}, top) && at != "/tmp" {
			c.Folders = append(c.Folders, at+":"+at+mode)
		}
	}
	if l.Workspace != "" {
		c.Folders = append(c.Folders, l.Workspace+":"+l.Workspace)
	}
	if p.server.Box.Memory {
		c.Stable = []string{"install:" + stateOf(slices.Concat(l.Reads, p.ways(l))), "system:" + stateOf(programs())}
	}
	s, err := byKeeper(p.server, c, p.keeper, "")
	l.Command, l.Args, l.Cwd = s.Command, s.Args, ""
	return l, err
}

// stateOf returns a digest of files and folders, which differs after one of them was replaced.
func stateOf(paths []string) string {
	sum := sha256.New()
	note := func(at string) {
		real, err := filepath.EvalSymlinks(at)
		if err != nil {
			return
		}
		if info, err := os.Stat(real); err == nil {
			_, _ = fmt.Fprintf(sum, "%s %s %d %d\n", at, real, info.Size(), info.ModTime().UnixNano()) // never fails
		}
	}
	for _, at := range paths {
		note(at)
		for _, in := range []string{"bin", "sbin", "lib", "lib64", "lib/*-linux-*", "local/bin", "local/lib", "node_modules", "lib/python3*", "lib/python3*/site-packages", "local/lib/python3*/dist-packages"} {
			found, _ := filepath.Glob(filepath.Join(at, in)) // the pattern is well formed
			for _, folder := range found {
				note(folder)
			}
		}
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}

// programs returns the folders in which a machine has programs, libraries and public certificates.
func programs() []string {
	return existing("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store", "/run/current-system",
		"/etc/alternatives", "/etc/ssl/certs", "/etc/ca-certificates", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/var/lib/ca-certificates")
}

// ways returns the paths that a sealed process needs to find its programs: its command, and the
// install folders of each program and of each link that leads to it, because the process follows
// these links itself.
func (c *confiner) ways(placed provision.Launch) []string {
	all := existing(c.locate(placed.Command, placed))
	for _, at := range append(c.runs(placed, c.locate), "node", "python3", "python") {
		at = c.locate(at, placed)
		for links := 0; filepath.IsAbs(at) && links < 40; links++ {
			all = append(all, c.install(at)...)
			to, err := os.Readlink(at)
			if err != nil {
				break
			}
			if !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(at), to)
			}
			at = to
		}
	}
	return all
}

// variables returns the variables of a container: those of its --env-file files, overridden by its
// own.
func variables(c serversfile.Container) (map[string]string, error) {
	env := map[string]string{}
	for _, file := range c.EnvFiles {
		lines, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("docker run --env-file: %w", err)
		}
		for line := range strings.Lines(string(lines)) {
			line = strings.TrimSpace(line)
			if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
				env[name] = value
			}
		}
	}
	maps.Copy(env, c.Env)
	return env, nil
}

// findKeeper returns the path of the keeper, which is beside this program or in the given PATH.
func findKeeper(path string) (string, error) {
	if runtime.GOOS != "linux" {
		return "", fmt.Errorf("a server gets a kernel of its own on Linux only, and this is %s: let Docker run it", runtime.GOOS)
	}
	if own, err := os.Executable(); err == nil {
		path = filepath.Dir(own) + string(filepath.ListSeparator) + path
	}
	keeper, err := box.LookPath(Keeper, path, "")
	if err != nil {
		return "", fmt.Errorf("%s is neither beside dormouse nor on the PATH: CGO_ENABLED=0 go install github.com/dormouse-mcp/dormouse/infra/keeper/dormouse-keeper@latest", Keeper)
	}
	return keeper, nil
}
