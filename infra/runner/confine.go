package runner

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// confiner makes the sandboxes of a server that is confined. Any other server runs with the rights
// of the runner.
type confiner struct {
	box  serversfile.Box
	on   sandbox.Support
	temp string            // folder with the Temp folders of the sandboxes
	env  map[string]string // PATH, HOME and the network variables, as the server gets them
	made atomic.Int64      // how many sandboxes were made
}

// surroundings returns PATH, HOME and the network variables of a server.
func surroundings(s serversfile.Server, environ map[string]string) map[string]string {
	env := provision.Network(environ, s.Env, s.Unset)
	env["HOME"], env["PATH"] = environ["HOME"], cmp.Or(s.Env["PATH"], environ["PATH"])
	for name, value := range s.Env {
		if provision.IsNetwork(name) {
			env[name] = value
		}
	}
	return env
}

// newConfiner makes a confiner, or fails if the system lacks a [sandbox.Guard] without which the
// server must not run.
func newConfiner(s serversfile.Server, work string, env map[string]string, on sandbox.Support) (*confiner, error) {
	c := &confiner{box: s.Box, on: on, temp: filepath.Join(work, "tmp"), env: env}
	if _, err := sandbox.New(c.policy(provision.Launch{}, ""), on); err != nil {
		return nil, err
	}
	// Every user may enter c.temp, because the folders in it belong to different users.
	if err := os.MkdirAll(c.temp, 0o755); err != nil {
		return nil, &sandbox.Error{Step: "folders", Err: err}
	}
	return c, nil
}

func (c *confiner) sandboxFor(_ string, placed provision.Launch) (*sandbox.Sandbox, error) {
	return sandbox.New(c.policy(placed, filepath.Join(c.temp, strconv.FormatInt(c.made.Add(1), 10))), c.on)
}

// enclosed reports whether the server can access only the system, its program and its workspace.
func (c *confiner) enclosed() bool { return c.box.Profile != "" || c.box.ReadOnlyRootFS }

// policy returns the sandbox policy for a process. If the process gets a folder for temporary
// files, it is temp.
func (c *confiner) policy(placed provision.Launch, temp string) sandbox.Policy {
	b := c.box
	p := sandbox.Policy{
		Sockets: c.sockets(), Memory: int64(b.MemoryMB) << 20, Processes: b.Pids, CPUs: b.CPUs,
		Workspace: placed.Workspace, Demand: c.demand(),
	}
	if b.Guest {
		p.Read = named(placed.Args)
		// A guest is confined because other people may call it, and not because its configuration
		// asks for that. Such a server keeps the runner's user if another user could not start it.
		p.KeepUser = !open(append(c.runs(placed, c.find), placed.Reads...)...)
	}
	if b.HostPathWritable && b.HostPath != "" {
		// The host path and its contents keep their owner.
		p.KeepUser, p.Workspace = true, ""
		if placed.Workspace != "" {
			p.Write = append(p.Write, placed.Workspace)
		}
	}
	if c.enclosed() || c.on.Users > 0 && !p.KeepUser {
		p.Temp = temp
	}
	switch {
	case !c.enclosed():
		p.Write = append(p.Write, "/")
	case !b.ReadOnlyRootFS:
		p.Write = append(p.Write, existing("/tmp", "/var/tmp")...)
	}
	if c.enclosed() {
		p.Read = slices.Concat(p.Read, placed.Reads, c.toolchains(placed), c.certificates())
		if filepath.IsAbs(placed.Cwd) {
			p.Read = append(p.Read, existing(filepath.Clean(placed.Cwd))...)
		}
	}
	return p
}

// named returns the existing files and folders that are named by arguments with an absolute path,
// or with --flag=PATH.
func named(args []string) []string {
	var all []string
	for _, arg := range args {
		if flag, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(flag, "-") {
			arg = value
		}
		if path := filepath.Clean(arg); filepath.IsAbs(arg) && path != "/" {
			all = append(all, existing(path)...)
		}
	}
	return all
}

// runs returns the program of a process and, if the program is a script, the interpreter in its
// first line. The function fileOf returns the file for a command.
func (c *confiner) runs(placed provision.Launch, fileOf func(string, provision.Launch) string) []string {
	all := []string{fileOf(placed.Command, placed)}
	words := box.Shebang(all[0])
	if len(words) > 1 && filepath.Base(words[0]) == "env" {
		words = words[1:]
	}
	if len(words) > 0 {
		all = append(all, fileOf(words[0], placed))
	}
	return all
}

// find returns the file that a command executes, without links.
func (c *confiner) find(command string, placed provision.Launch) string {
	command = c.locate(command, placed)
	real, err := filepath.EvalSymlinks(command)
	if err != nil {
		return command
	}
	return real
}

// locate returns the absolute path of a command, or the command if it is not found in the PATH.
func (c *confiner) locate(command string, placed provision.Launch) string {
	path := slices.Concat(placed.Path, filepath.SplitList(c.env["PATH"]))
	for i := 0; !filepath.IsAbs(command) && i < len(path); i++ {
		if at := filepath.Join(path[i], command); filepath.IsAbs(at) && len(existing(at)) > 0 {
			command = at
		}
	}
	return command
}

// sockets returns which sockets the server may open. An enclosed server may open no unix sockets:
// other programs of its user could access that user's files for it.
func (c *confiner) sockets() sandbox.Sockets {
	switch {
	case c.box.Offline:
		return sandbox.NoSockets
	case c.enclosed():
		return sandbox.InternetSockets
	default:
		return sandbox.AllSockets
	}
}

// demand returns the guards without which the server must not run: all that confine it and, for a
// profile, those of its limits of memory and CPUs. The limit of processes is not among them, because
// most systems cannot enforce it unless the runner is root.
func (c *confiner) demand() []sandbox.Guard {
	var all []sandbox.Guard
	if c.box.Offline {
		all = append(all, sandbox.GuardNetwork)
	}
	if c.sockets() < sandbox.AllSockets {
		all = append(all, sandbox.GuardSockets)
	}
	if c.enclosed() {
		all = append(all, sandbox.GuardFiles, sandbox.GuardNeighbours)
	}
	if c.box.Profile != "" {
		all = append(all, sandbox.GuardMemory, sandbox.GuardCPUs)
	}
	return all
}

// toolchains returns the folders in which the server's command, node and python are installed, and
// the virtual environment of the command. Version managers install programs in the user's home, where
// an enclosed server can access nothing else.
func (c *confiner) toolchains(placed provision.Launch) []string {
	var found []string
	for _, name := range append(c.runs(placed, c.find), "node", "python3", "python") {
		if real := c.find(name, placed); filepath.IsAbs(real) {
			found = append(found, c.install(real)...)
		}
	}
	// The python of a virtual environment is a link, which leads away from its packages.
	for _, at := range c.runs(placed, c.locate) {
		if len(existing(filepath.Join(filepath.Dir(filepath.Dir(at)), venvFile))) > 0 {
			found = append(found, c.install(at)...)
		}
	}
	return found
}

const venvFile = "pyvenv.cfg" // without it, python does not know that it is in a virtual environment

// certificates returns the files and folders that the server's variables name as the certificates
// to trust.
func (c *confiner) certificates() []string {
	var found []string
	for _, name := range provision.Certificates() {
		for _, path := range filepath.SplitList(c.env[name]) {
			if filepath.IsAbs(path) {
				found = append(found, existing(filepath.Clean(path))...)
			}
		}
	}
	return found
}

// install returns the folders that a program needs: the bin, lib and similar folders of its
// installation, or the whole folder of a version manager. install never returns a whole home.
func (c *confiner) install(program string) []string {
	dir, in := filepath.Dir(program), filepath.Base(filepath.Dir(program))
	prefix := filepath.Dir(dir)
	home := filepath.Clean(c.env["HOME"])
	whole := prefix != "/" && prefix != home && !strings.HasPrefix(home, prefix+"/")
	switch {
	case in == "shims" && whole:
		return []string{prefix}
	case in != "bin" || prefix == "/" || prefix == "/usr":
		return nil
	}
	var all []string
	for _, part := range []string{"bin", "lib", "lib64", "libexec", "include", venvFile} {
		all = append(all, existing(filepath.Join(prefix, part))...)
	}
	return all
}

func existing(paths ...string) []string {
	var there []string
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			there = append(there, p)
		}
	}
	return there
}

// refused is the provisioner of a server that must not be started here.
type refused struct{ why error }

// Provision fails with the phase session_create.
func (r refused) Provision(context.Context, string, func(provision.Progress), provision.Restore) (provision.Launch, error) {
	return provision.Launch{}, &provision.Error{Phase: provision.SessionCreate, Err: r.why}
}

// Remove does nothing.
func (refused) Remove(string) error { return nil }

// whyRefused returns the error for the client: what is missing, and what the operator can do.
func whyRefused(err error) error {
	return fmt.Errorf("x-dormouse.box asks for a sandbox that this machine does not have: run the server where there is one, or change profile, network or read_only_rootfs: %w", err)
}
