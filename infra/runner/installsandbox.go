package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// installSandbox is the sandbox in which packages run their own code while they are installed.
// That code can write only to one folder, and gets no secrets.
type installSandbox struct {
	*sandbox.Sandbox
	mark string // the value of proc.MarkEnv in its processes, by which End finds them
}

// Environment returns the variables of the sandbox, and proc.MarkEnv.
func (w installSandbox) Environment() map[string]string {
	env := w.Sandbox.Environment()
	env[proc.MarkEnv] = w.mark
	return env
}

// End kills all processes in the sandbox, even those that have left the process group of the
// installer.
func (w installSandbox) End() error { return errors.Join(proc.EndMarked(w.mark), w.Sandbox.End()) }

// installSandboxes returns the function that makes the sandboxes for installs of a server. For a
// server that is itself confined, the function fails if this system cannot confine the code of
// packages.
func installSandboxes(s serversfile.Server, work string, env map[string]string, on sandbox.Support) func(provision.Workshop) (provision.Sandbox, error) {
	c := confiner{box: s.Box, on: on, env: env}
	var made atomic.Int64
	return func(w provision.Workshop) (provision.Sandbox, error) {
		p := sandbox.Policy{Sockets: sandbox.InternetSockets, Workspace: w.Folder, Temp: filepath.Join(w.Folder, ".tmp")}
		p.Read = slices.Concat(w.Read, c.toolchains(provision.Launch{}), c.certificates())
		for _, program := range w.Programs {
			p.Read = append(p.Read, c.install(program)...)
		}
		if s.Box.Confined() {
			p.Demand = append(p.Demand, sandbox.GuardFiles, sandbox.GuardNeighbours, sandbox.GuardSockets)
		}
		if (!s.Box.Confined() || s.Box.Guest) && !open(append(p.Read, w.Folder)...) {
			// Another user than the runner's might not be able to start the interpreter.
			p.KeepUser = true
		}
		in, err := sandbox.New(p, on)
		if err != nil {
			return nil, err
		}
		return installSandbox{in, fmt.Sprintf("%s/install-%d", work, made.Add(1))}, nil
	}
}

// open reports whether every user may enter all folders above the paths.
func open(paths ...string) bool {
	for _, p := range paths {
		for dir := filepath.Dir(p); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
			if info, err := os.Stat(dir); err != nil || info.Mode()&0o001 == 0 {
				return false
			}
		}
	}
	return true
}
