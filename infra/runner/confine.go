package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
)

// confiner makes the sandboxes of a server that asks for something of one. A server
// that asks for nothing has none: it runs with the rights of the runner, as every
// MCP client starts its servers.
type confiner struct {
	box  catalog.Box
	on   sandbox.Support
	temp string            // folder for temporary folders, one for each process
	env  map[string]string // PATH and HOME as the server will have them
	made atomic.Int64
}

// newConfiner fails when the system lacks what the server must not run without.
func newConfiner(s catalog.Server, work string, env map[string]string, on sandbox.Support) (*confiner, error) {
	c := &confiner{box: s.Box, on: on, temp: filepath.Join(work, "tmp"), env: env}
	if _, err := sandbox.New(c.policy(provision.Launch{}, ""), on); err != nil {
		return nil, err
	}
	// Open to all, because each folder in it belongs to a user of its own.
	if err := os.MkdirAll(c.temp, 0o755); err != nil {
		return nil, &sandbox.Error{Step: "folders", Err: err}
	}
	return c, nil
}

// place makes the sandbox of one process.
func (c *confiner) place(_ string, placed provision.Launch) (*sandbox.Sandbox, error) {
	return sandbox.New(c.policy(placed, filepath.Join(c.temp, strconv.FormatInt(c.made.Add(1), 10))), c.on)
}

// enclosed says that the server sees nothing of the disk but the system, what it is
// made of, and its workspace. One that only has limits, or no network, keeps the
// files of its user.
func (c *confiner) enclosed() bool { return c.box.Profile != "" || c.box.ReadOnlyRootFS }

// policy is what a process of the server may do, once it is in place.
func (c *confiner) policy(placed provision.Launch, temp string) sandbox.Policy {
	b := c.box
	p := sandbox.Policy{
		Sockets: c.sockets(), Memory: int64(b.MemoryMB) << 20, Processes: b.Pids, CPUs: b.CPUs,
		Workspace: placed.Workspace, Demand: c.demand(),
	}
	if b.HostPathWritable && b.HostPath != "" {
		// The folder is its user's, with all that is in it.
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
		p.Read = append(append(p.Read, placed.Reads...), c.toolchains(placed)...)
		if filepath.IsAbs(placed.Cwd) {
			p.Read = append(p.Read, existing(filepath.Clean(placed.Cwd))...)
		}
	}
	return p
}

// sockets are what the server may open. One that sees nothing of its user's files gets
// no socket that leads to that user's other programs, either.
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

// demand is what the server must not run without: that nobody gets out. Limits are
// demanded by a profile, but for that of processes: without root no system has it,
// and the box says that it does without.
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

// toolchains are folders outside of the system that the interpreters in the PATH of
// the server are installed in, and its own command: those of version managers are in
// the home of their user, of which an enclosed server sees nothing else.
func (c *confiner) toolchains(placed provision.Launch) []string {
	path := append(append([]string{}, placed.Path...), filepath.SplitList(c.env["PATH"])...)
	var found []string
	for _, name := range []string{placed.Command, "node", "python3", "python"} {
		file := name
		for i := 0; !filepath.IsAbs(file) && i < len(path); i++ {
			if at := filepath.Join(path[i], name); filepath.IsAbs(at) && len(existing(at)) > 0 {
				file = at
			}
		}
		if real, err := filepath.EvalSymlinks(file); err == nil && filepath.IsAbs(real) {
			found = append(found, c.install(real)...)
		}
	}
	return found
}

// install is what belongs to a program: the folders beside its bin, or all of a
// version manager. A home is never taken as a whole.
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
	for _, part := range []string{"bin", "lib", "lib64", "libexec", "include"} {
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

// refused prepares nothing: the server must not run here.
type refused struct{ why error }

// Provision fails, as a start whose place cannot be made.
func (r refused) Provision(context.Context, string, func(provision.Progress)) (provision.Launch, error) {
	return provision.Launch{}, &provision.Error{Phase: provision.SessionCreate, Err: r.why}
}

// Remove has nothing to remove.
func (refused) Remove(string) error { return nil }

// whyRefused is for the client: what is missing, and what to do.
func whyRefused(err error) error {
	return fmt.Errorf("x-dormouse.box asks for a sandbox that this machine (%s) does not have: run the server where there is one, or change profile, network or read_only_rootfs: %w", kernel(), err)
}

// kernel names the system, and on Linux its version, on which it depends what a sandbox
// can be made of.
func kernel() string {
	version, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return runtime.GOOS
	}
	return runtime.GOOS + " " + strings.TrimSpace(string(version))
}
