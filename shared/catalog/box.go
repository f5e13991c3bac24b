package catalog

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Scope says who shares a process of a server. Who does works in one workspace, sees
// what others do in the process as far as the server shows it, and hears what it says
// of no call. The protocol version is that of the first.
type Scope string

// The scopes.
const (
	ScopeSession   Scope = "session"   // each session has its own
	ScopePrincipal Scope = "principal" // all sessions of a principal
	ScopeShared    Scope = "shared"    // all sessions of a tenant, whoever they belong to
)

// HostPathAuto in the place of a host path has it inferred from the absolute
// paths in the command and its arguments.
const HostPathAuto = "auto"

// Box is the section x-dormouse.box of a server: what surrounds its processes.
// It holds no secrets: the values of its env are in Server.Env.
type Box struct {
	// Image is the container image of the box; it says nothing on one machine.
	Image string `json:"image,omitempty"`
	// Offline is network "off": the server's processes have no network. What the
	// box installs for them still comes over it.
	Offline bool `json:"offline,omitempty"`

	// HostPath is a folder with the server's program, absolute or [HostPathAuto];
	// "" for none. With HostPathWritable (host_path_mode "rw") the server works in
	// that folder; without ("ro") in a copy of it, and the folder never changes.
	HostPath         string `json:"host_path,omitempty"`
	HostPathWritable bool   `json:"host_path_rw,omitempty"`
	// MountRoots are the folders that a host path must lie in, the file's
	// x-dormouse.allowed_mount_roots; nil means anywhere.
	MountRoots []string `json:"mount_roots,omitempty"`

	// Limits of one process with its children; 0 for none.
	CPUs     float64 `json:"cpus,omitempty"` // whole processors
	MemoryMB int     `json:"memory_mb,omitempty"`
	Pids     int     `json:"pids,omitempty"` // processes and threads
	// ReadOnlyRootFS leaves only workspace and temporary folder writable.
	ReadOnlyRootFS bool `json:"ro_rootfs,omitempty"`

	// InstallScripts has packages run their own code while they are installed: install
	// scripts of npm, and what builds a Python package from its source. It runs in a
	// sandbox of its own. Without it that code is not run.
	InstallScripts bool `json:"install_scripts,omitempty"`

	// Profile is the named profile the fields above come from where the file says
	// nothing, "" for none. A server with a profile must not run where the profile
	// cannot be kept, but for its pids_limit: without root no system has that, and the
	// box logs that it does without.
	Profile string `json:"profile,omitempty"`

	Scope Scope `json:"scope,omitempty"` // "" is ScopeSession

	// Snapshot is what the file says; see [Server.Kept].
	Snapshot Snapshot `json:"snapshot,omitempty"`

	// Secrets names the variables of Server.Env whose values must never appear in
	// what a box says, beside those whose names look secret.
	Secrets []string `json:"secrets,omitempty"`
}

// Confined says that something of a sandbox was asked for: the server must not run
// without one.
func (b Box) Confined() bool {
	return b.Profile != "" || b.Offline || b.CPUs > 0 || b.MemoryMB > 0 || b.Pids > 0 || b.ReadOnlyRootFS
}

// profile is a set of values with a name. A file may set other values, but not for
// the locked fields.
type profile struct {
	box    Box
	tool   time.Duration
	locked []string
}

// profiles are the named ones, with the same values as the system they come from.
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

// box reads x-dormouse.box. The profile comes first, whatever the order in the
// file: other keys change what it says.
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

// checkSnapshot refuses to keep for one session, or one principal, a workspace that
// more of them work in.
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

// lockable reads a key that the profile locks: it may say what the profile says.
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

// changed compares what profiles can lock.
func changed(a, b Server) bool {
	x, y := a.Box, b.Box
	return a.ToolTimeout != b.ToolTimeout || x.Offline != y.Offline || x.HostPathWritable != y.HostPathWritable ||
		x.CPUs != y.CPUs || x.MemoryMB != y.MemoryMB || x.Pids != y.Pids || x.ReadOnlyRootFS != y.ReadOnlyRootFS
}

func (r *serverReader) profile(m member) profile {
	all := profiles()
	p, ok := all[m.value.text]
	if m.value.shape != text || !ok {
		r.oneOf(m, slices.Sorted(maps.Keys(all))...)
		return profile{}
	}
	before := r.server.Box
	r.server.Box = p.box
	r.server.Box.Profile, r.server.Box.MountRoots, r.server.Box.Secrets = m.value.text, before.MountRoots, before.Secrets
	switch {
	case !r.times["tool_timeout_sec"]:
		r.server.ToolTimeout = p.tool
	case slices.Contains(p.locked, "tool_timeout_sec") && r.server.ToolTimeout != p.tool:
		// It stands above the section, where the check of the section does not look.
		r.locked(m.at, "tool_timeout_sec", m.value.text)
	}
	return p
}

// boxKeys are the keys under x-dormouse.box.
func boxKeys() map[string]field {
	keys := map[string]field{
		"profile":          readBefore,
		"image":            func(r *serverReader, m member) { r.server.Box.Image = r.text(m.value, "image") },
		"network":          func(r *serverReader, m member) { r.server.Box.Offline = r.oneOf(m, "on", "off") == "off" },
		"host_path":        func(r *serverReader, m member) { r.server.Box.HostPath = r.text(m.value, "host_path") },
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

// boxEnv is what only holds here; it wins over what holds for all clients.
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

// prewarm refuses all but 0. What is kept ready would run while nobody speaks; and a
// process that was started ahead in a box that is awake could not be given to anybody:
// it needs the workspace and the initialize of its session.
func (r *serverReader) prewarm(m member) {
	if !r.want(m.value, number, r.what+": "+m.name) {
		return
	}
	if m.value.float() != 0 {
		r.fail(m.value.at, `%s: prewarm is not offered, because nothing runs while nobody speaks: leave it out; raise idle_seconds to have a box stay awake longer, or let sessions share a process with scope`, r.what)
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

// checkHostPath refuses what cannot be the path of a folder. Whether it is there,
// and where its links lead, the box finds out.
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

// within says whether path is root or below it; both are clean.
func within(path, root string) bool {
	rel, err := filepath.Rel(root, path)
	return err == nil && filepath.IsLocal(rel)
}

// oneOf reads one of a few words; it gives "" and complains if m is none.
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

// whole reads a whole number between two bounds.
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
