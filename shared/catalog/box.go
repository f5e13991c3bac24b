package catalog

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Scope says which sessions share a process of a server. These sessions work in one
// workspace, and their clients may see what the others do in the process, as far as the
// server shows it. Every one of them gets the messages that the process sends outside of
// calls. The protocol version is that of the first session.
type Scope string

// The scopes.
const (
	ScopeSession   Scope = "session"   // each session has its own
	ScopePrincipal Scope = "principal" // all sessions of a principal
	ScopeShared    Scope = "shared"    // all sessions of a tenant
)

// HostPathAuto is a host path that Dormouse infers from the absolute paths in the command
// and its arguments.
const HostPathAuto = "auto"

// Box is the section x-dormouse.box of a server: the surroundings of its processes. It
// holds no secrets: the values of its env are in Server.Env.
type Box struct {
	// Image is the container image of the box; it has no effect on one machine.
	Image string `json:"image,omitempty"`
	// Place is where the box runs on AWS: "auto", "lambda" or "fargate"; "" is
	// the stack's own choice.
	Place string `json:"place,omitempty"`
	// Offline is network "off": the server's processes have no network. The box still uses
	// the network to install packages for them.
	Offline bool `json:"offline,omitempty"`

	// HostPath is a folder with the server's program, absolute or [HostPathAuto]; "" for
	// none. With HostPathWritable (host_path_mode "rw") the server works in that folder.
	// Without it ("ro") the server works in a copy, and the folder never changes.
	HostPath         string `json:"host_path,omitempty"`
	HostPathWritable bool   `json:"host_path_rw,omitempty"`
	// MountRoots are the folders that may hold a host path, from the file's
	// x-dormouse.allowed_mount_roots; nil means any.
	MountRoots []string `json:"mount_roots,omitempty"`

	// These limit one process together with its children; 0 means no limit.
	CPUs     float64 `json:"cpus,omitempty"` // whole processors
	MemoryMB int     `json:"memory_mb,omitempty"`
	Pids     int     `json:"pids,omitempty"` // processes and threads
	// ReadOnlyRootFS makes all but the workspace and the temporary folder read-only.
	ReadOnlyRootFS bool `json:"ro_rootfs,omitempty"`

	// InstallScripts lets packages run their own code while they are installed: install
	// scripts of npm, and builds of Python packages from source. The code runs in a
	// sandbox of its own. Without InstallScripts it is not run.
	InstallScripts bool `json:"install_scripts,omitempty"`

	// Profile is the named profile that gives the values of the fields above that the
	// file does not set, "" for none. A server with a profile must not run where the
	// profile cannot be enforced. The exception is its pids_limit: no system can enforce
	// that without root, and the box logs that it is missing.
	Profile string `json:"profile,omitempty"`
	// Free is profile "none": the server is no guest, wherever it runs.
	Free bool `json:"free,omitempty"`
	// Guest says that the file has no profile for the server, and that others than the user
	// of the machine may call it; see [LoadGuests]. It has the network, its workspace, and
	// what its command line names. ReadOnlyRootFS is set, too.
	Guest bool `json:"guest,omitempty"`

	Scope Scope `json:"scope,omitempty"` // "" is ScopeSession

	// Snapshot is the file's own value; see [Server.Kept].
	Snapshot Snapshot `json:"snapshot,omitempty"`

	// Secrets names the variables of Server.Env whose values must never appear in the
	// output of a box. Variables whose names look secret are hidden too.
	Secrets []string `json:"secrets,omitempty"`
}

// Confined reports whether the file asks for any part of a sandbox. If so, the server
// must not run without a sandbox.
func (b Box) Confined() bool {
	return b.Profile != "" || b.Guest || b.Offline || b.CPUs > 0 || b.MemoryMB > 0 || b.Pids > 0 || b.ReadOnlyRootFS
}

// profile is a named set of values. A file may set other values, except for the locked
// fields.
type profile struct {
	box    Box
	tool   time.Duration
	locked []string
}

// noProfile is the profile of a server, or of a whole file, that is to be no guest.
const noProfile = "none"

// guest makes a server a guest if the machine wants that, and the file does not say
// otherwise. A program that runs containers is none, because these confine their programs,
// and it needs the socket of its service.
func (r *serverReader) guest() {
	b := &r.server.Box
	if r.guests && b.Profile == "" && !b.Free && !slices.Contains([]string{"docker", "podman", "nerdctl"}, filepath.Base(r.server.Command)) {
		b.Guest, b.ReadOnlyRootFS = true, true
	}
}

// profiles returns the named profiles. docs/servers-file.md lists their names.
func profiles() map[string]profile {
	return map[string]profile{
		"default": {
			box:  Box{Offline: true, CPUs: 1, MemoryMB: 512, Pids: 128, ReadOnlyRootFS: true},
			tool: 120 * time.Second,
		},
		"offline_readonly": {
			box:  Box{Offline: true, CPUs: 0.5, MemoryMB: 256, Pids: 64, ReadOnlyRootFS: true},
			tool: 60 * time.Second,
			locked: []string{
				"network", "host_path_mode", "cpus", "memory_mb", "pids_limit", "read_only_rootfs", "tool_timeout_sec",
			},
		},
		"network_basic": {
			box:  Box{CPUs: 1, MemoryMB: 512, Pids: 128, ReadOnlyRootFS: true},
			tool: 120 * time.Second,
		},
		"network_extended": {
			box:  Box{CPUs: 2, MemoryMB: 1024, Pids: 256},
			tool: 300 * time.Second,
		},
	}
}

// # Reading

// box reads x-dormouse.box. It reads the profile first, wherever it stands in the section,
// because other keys change its values.
func (r *serverReader) box(n node) {
	var p profile
	if m, ok := n.get("profile"); ok && m.value.shape != null {
		p = r.profile(m)
	}
	keys := boxKeys()
	for name, read := range keys {
		if slices.Contains(p.locked, name) {
			keys[name] = func(r *serverReader, m member) { r.lockable(m, read) }
		}
	}
	r.fields(n, r.what+": x-dormouse.box", keys)
	for _, name := range r.server.Box.Secrets {
		if _, ok := r.server.Env[name]; !ok {
			m, _ := n.get("secrets")
			r.warn(m.at, "%s: secrets names %q, which is no variable of env", r.what, name)
		}
	}
	r.checkHostPath(n)
	r.checkSnapshot(n)
}

// checkSnapshot refuses a snapshot for one session, or one principal, if others share the
// workspace.
func (r *serverReader) checkSnapshot(n node) {
	m, _ := n.get("snapshot")
	scope := r.server.Box.Scope
	switch r.server.Box.Snapshot {
	case SnapshotSession:
		if scope == ScopeSession || scope == "" {
			return
		}
	case SnapshotPrincipal:
		if scope != ScopeShared {
			return
		}
	default:
		return
	}
	r.fail(m.value.at, "%s: snapshot %q does not fit scope %q: leave it out, for what is kept is then of all who share the process, or make it \"off\"",
		r.what, r.server.Box.Snapshot, scope)
}

// lockable reads a key that the profile locks. The key may only repeat the profile's
// value.
func (r *serverReader) lockable(m member, read field) {
	before, problems := r.server, len(r.problems)
	read(r, m)
	if len(r.problems) == problems && changed(before, r.server) {
		r.locked(m.value.at, m.name, before.Box.Profile)
		r.server = before
	}
}

func (r *serverReader) locked(at int, field, profile string) {
	r.fail(at, "%s: %s is locked by the profile %q: leave it out or choose another profile", r.what, field, profile)
}

// changed reports whether a field that profiles can lock differs between a and b.
func changed(a, b Server) bool {
	x, y := a.Box, b.Box
	return a.ToolTimeout != b.ToolTimeout || x.Offline != y.Offline || x.HostPathWritable != y.HostPathWritable ||
		x.CPUs != y.CPUs || x.MemoryMB != y.MemoryMB || x.Pids != y.Pids || x.ReadOnlyRootFS != y.ReadOnlyRootFS
}

func (r *serverReader) profile(m member) profile {
	all := profiles()
	p, ok := all[m.value.text]
	if m.value.shape != text || !ok {
		named := r.oneOf(m, append(slices.Sorted(maps.Keys(all)), noProfile)...)
		r.server.Box.Free = named == noProfile
		return profile{}
	}
	before := r.server.Box
	r.server.Box = p.box
	r.server.Box.Profile, r.server.Box.MountRoots, r.server.Box.Secrets = m.value.text, before.MountRoots, before.Secrets
	switch {
	case !r.times["tool_timeout_sec"]:
		r.server.ToolTimeout = p.tool
	case slices.Contains(p.locked, "tool_timeout_sec") && r.server.ToolTimeout != p.tool:
		// The check of the section does not see this key, because the key is outside of
		// it.
		r.locked(m.at, "tool_timeout_sec", m.value.text)
	}
	return p
}

// boxKeys are the keys under x-dormouse.box.
func boxKeys() map[string]field {
	keys := map[string]field{
		"profile": readBefore,
		"image":   func(r *serverReader, m member) { r.server.Box.Image = r.text(m.value, "image") },
		"place": func(r *serverReader, m member) {
			r.server.Box.Place = r.oneOf(m, "auto", "lambda", "fargate")
		},
		"network":          func(r *serverReader, m member) { r.server.Box.Offline = r.oneOf(m, "on", "off") == "off" },
		"host_path":        func(r *serverReader, m member) { r.server.Box.HostPath = r.path(m.value, "host_path") },
		"host_path_mode":   func(r *serverReader, m member) { r.server.Box.HostPathWritable = r.oneOf(m, "ro", "rw") == "rw" },
		"env":              (*serverReader).boxEnv,
		"cpus":             func(r *serverReader, m member) { r.number(m, 0.01, 64, &r.server.Box.CPUs) },
		"memory_mb":        func(r *serverReader, m member) { r.whole(m, 16, 1<<20, &r.server.Box.MemoryMB) },
		"pids_limit":       func(r *serverReader, m member) { r.whole(m, 1, 1<<16, &r.server.Box.Pids) },
		"read_only_rootfs": func(r *serverReader, m member) { r.boolean(m, &r.server.Box.ReadOnlyRootFS) },
		"install_scripts":  func(r *serverReader, m member) { r.boolean(m, &r.server.Box.InstallScripts) },
		"scope": func(r *serverReader, m member) {
			r.server.Box.Scope = Scope(r.oneOf(m, string(ScopeSession), string(ScopePrincipal), string(ScopeShared)))
		},
		"prewarm": (*serverReader).prewarm,
		"snapshot": func(r *serverReader, m member) {
			r.server.Box.Snapshot = Snapshot(r.oneOf(m, string(SnapshotOff), string(SnapshotSession), string(SnapshotPrincipal)))
		},
		"secrets": (*serverReader).secrets,
	}
	maps.Copy(keys, timeKeys())
	return keys
}

// boxEnv reads the variables that only the box uses. They override those for all clients.
func (r *serverReader) boxEnv(m member) {
	if r.want(m.value, object, r.what+": box env") {
		r.each(m.value, r.variable)
	}
}

func (r *serverReader) boolean(m member, to *bool) {
	if r.want(m.value, boolean, r.what+": "+m.name) {
		*to = m.value.on
	}
}

// prewarm refuses all values but 0. A process kept ready would run without clients. A
// process started ahead in a box that is up could serve no session, because it needs the
// workspace and the initialize of its session.
func (r *serverReader) prewarm(m member) {
	if !r.want(m.value, number, r.what+": "+m.name) {
		return
	}
	if m.value.float() != 0 {
		r.fail(m.value.at, `%s: prewarm does not exist, because nothing runs between messages: remove it; raise idle_seconds to keep a box awake longer, or let sessions share a process with scope`, r.what)
	}
}

func (r *serverReader) secrets(m member) {
	if !r.want(m.value, array, r.what+": secrets") {
		return
	}
	for i, item := range m.value.items {
		if r.want(item, text, fmt.Sprintf("%s: secrets[%d]", r.what, i)) {
			r.server.Box.Secrets = append(r.server.Box.Secrets, item.text)
		}
	}
}

// checkHostPath refuses a path that cannot name a folder. The box finds out whether the
// folder exists, and where its links lead.
func (r *serverReader) checkHostPath(n node) {
	m, _ := n.get("host_path")
	path, roots := r.server.Box.HostPath, r.server.Box.MountRoots
	if path == "" || path == HostPathAuto {
		return
	}
	r.server.Box.HostPath = filepath.Clean(path)
	switch {
	case !filepath.IsAbs(path) || filepath.Clean(path) != strings.TrimSuffix(path, "/") && path != "/":
		r.fail(m.value.at, "%s: host_path must be an absolute path without . and .., or %q", r.what, HostPathAuto)
	case roots != nil && !slices.ContainsFunc(roots, func(root string) bool { return within(filepath.Clean(path), root) }):
		r.fail(m.value.at, "%s: host_path is outside of allowed_mount_roots", r.what)
	}
}

// within reports whether path is root or below it; both are clean.
func within(path, root string) bool {
	rel, err := filepath.Rel(root, path)
	return err == nil && filepath.IsLocal(rel)
}

// oneOf reads a value that must be one of the allowed words. For any other value it
// complains and returns "".
func (r *serverReader) oneOf(m member, allowed ...string) string {
	if m.value.shape == text && slices.Contains(allowed, m.value.text) {
		return m.value.text
	}
	list := ""
	for i, a := range allowed {
		switch {
		case i == 0:
		case i == len(allowed)-1:
			list += " or "
		default:
			list += ", "
		}
		list += fmt.Sprintf("%q", a)
	}
	r.fail(m.value.at, "%s: %s must be %s", r.what, m.name, list)
	return ""
}

// number reads a number between two bounds.
func (r *serverReader) number(m member, least, most float64, to *float64) {
	if !r.want(m.value, number, r.what+": "+m.name) {
		return
	}
	v := m.value.float()
	if v < least || v > most {
		r.fail(m.value.at, "%s: %s must be at least %g and at most %g", r.what, m.name, least, most)
		return
	}
	*to = v
}

// whole reads a whole number between two limits.
func (r *serverReader) whole(m member, least, most int, to *int) {
	if !r.want(m.value, number, r.what+": "+m.name) {
		return
	}
	v := m.value.float()
	if v < float64(least) || v > float64(most) || v != float64(int(v)) {
		r.fail(m.value.at, "%s: %s must be a whole number, at least %d and at most %d", r.what, m.name, least, most)
		return
	}
	*to = int(v)
}
