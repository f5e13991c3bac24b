package serversfile

import (
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Scope says which sessions share a process of a server. These sessions work in one workspace,
// and their clients may see what the others do in the process, as far as the server shows it.
// Every such session gets the messages that the process sends outside of calls. The protocol
// version is that of the first session.
type Scope string

// Values of Scope.
const (
	ScopeSession   Scope = "session"   // each session has a process of its own
	ScopePrincipal Scope = "principal" // all sessions of a principal share one
	ScopeShared    Scope = "shared"    // all sessions of a tenant share one
)

// HostPathAuto is a host path that Dormouse infers from the absolute paths in the command
// and its arguments.
const HostPathAuto = "auto"

// Box is the section x-dormouse.box of a server: the surroundings of its processes. A Box holds
// no secrets: the values of its env are in Server.Env.
type Box struct {
	// Image is the container image of the box. On one machine only dormouse-keeper uses it; see
	// [Server.Sealable].
	Image string `json:"image,omitempty"`
	// Sealed says that the server must run in a kernel of its own, or not at all.
	Sealed bool `json:"sealed,omitempty"`
	// Place is where the box runs on AWS: "auto", "lambda" or "fargate"; "" is the default of the
	// stack.
	Place string `json:"place,omitempty"`
	// Offline is network "off": the server's processes have no network. The box still uses
	// the network to install packages for them.
	Offline bool `json:"offline,omitempty"`
	// Hosts are the only hosts that the processes may call, such as "api.github.com",
	// "*.slack.com:443" or "192.168.1.10:5432". It is nil if the file has no list of hosts. If Hosts
	// is set, so is Sealed.
	Hosts []string `json:"hosts,omitempty"`

	// HostPath is a folder with the server's program, absolute or [HostPathAuto]; "" for none. With
	// HostPathWritable (host_path_mode "rw") the server works in that folder, and without it ("ro")
	// in a copy.
	HostPath         string `json:"host_path,omitempty"`
	HostPathWritable bool   `json:"host_path_rw,omitempty"`

	// CPUs, MemoryMB and Pids limit one process together with its children; 0 means no limit.
	CPUs     float64 `json:"cpus,omitempty"` // 1 is one processor
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
	// Free says that the file has profile "none": Guest then stays false, whoever may call the
	// server.
	Free bool `json:"free,omitempty"`
	// Guest says that the file has no profile for the server, and that others than the user of the
	// machine may call it; see [LoadGuests]. A guest may use the network, its workspace, and what
	// its command line names. ReadOnlyRootFS is set, too.
	Guest bool `json:"guest,omitempty"`

	Scope Scope `json:"scope,omitempty"` // "" is ScopeSession

	// Snapshot is the value in the file. [Server.Kept] returns the value that applies.
	Snapshot Snapshot `json:"snapshot,omitempty"`

	// Memory says that the memory of a process is kept while its box sleeps. Sealed is set, too.
	Memory bool `json:"memory,omitempty"`

	// Secrets names the variables of Server.Env whose values must never appear in the
	// output of a box. Variables whose names look secret are hidden too.
	Secrets []string `json:"secrets,omitempty"`
}

// Confined reports whether the file asks for any part of a sandbox. A confined server must not
// run without a sandbox.
func (b Box) Confined() bool {
	return b.Profile != "" || b.Guest || b.Offline || b.CPUs > 0 || b.MemoryMB > 0 || b.Pids > 0 || b.ReadOnlyRootFS
}

// profile is a named set of values for a [Box]. A file may set other values, except for the locked
// fields.
type profile struct {
	box    Box
	tool   time.Duration
	locked []string
}

// noProfile is the value of profile with which [Box.Guest] stays false.
const noProfile = "none"

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

// box reads x-dormouse.box, after all other keys of the server, because the section may name
// variables that those keys set. It reads the profile first, wherever it stands in the section,
// because other keys change its values. If timed is true, the file has tool_timeout_sec.
func (r *serverReader) box(m member, settings []setting, timed bool) {
	if !r.want(m.value, object, r.what+": box") {
		return
	}
	n, b := m.value, &r.server.Box
	var p profile
	if m, ok := n.get("profile"); ok && m.value.shape != null {
		p = r.profile(m, timed)
	}
	for i, s := range settings {
		if !slices.Contains(p.locked, s.key) {
			continue
		}
		settings[i].kind.read = func(m member, what string) {
			before, problems := *b, len(r.problems)
			if s.kind.read(m, what); len(r.problems) == problems && !reflect.DeepEqual(before, *b) {
				r.locked(m.value.at, m.name, before.Profile)
			}
		}
	}
	r.read(n, section{name: r.what + ": x-dormouse.box", label: r.what + ": ", settings: settings})
	if b.Hosts != nil {
		if m, _ := n.get("sealed"); b.sealedOff(n) {
			r.fail(m.at, "%s: sealed is false, and a list of hosts in network always seals: leave sealed out", r.what)
		}
		b.Sealed = true
	}
	if b.Memory {
		r.againstMemory(n)
		b.Sealed = true
	}
	for _, name := range b.Secrets {
		if _, ok := r.server.Env[name]; !ok {
			m, _ := n.get("secrets")
			r.warn(m.at, "%s: secrets names %q, which is no variable of env", r.what, name)
		}
	}
	if m, ok := n.get("host_path"); ok && b.HostPath != "" && b.HostPath != HostPathAuto {
		path := b.HostPath
		b.HostPath = filepath.Clean(path)
		if !filepath.IsAbs(path) || b.HostPath != strings.TrimSuffix(path, "/") && path != "/" {
			r.fail(m.value.at, "%s: host_path must be an absolute path without . and .., or %q", r.what, HostPathAuto)
		}
	}
	alone := b.Scope == ScopeSession || b.Scope == ""
	if b.Snapshot == SnapshotSession && !alone || b.Snapshot == SnapshotPrincipal && b.Scope == ScopeShared {
		m, _ := n.get("snapshot")
		r.fail(m.value.at, "%s: snapshot %q does not fit scope %q: leave it out, for what is kept is then of all who share the process, or make it \"off\"", r.what, b.Snapshot, b.Scope)
	}
}

// againstMemory complains about each setting that contradicts memory "keep".
func (r *serverReader) againstMemory(n node) {
	b := &r.server.Box
	for _, other := range []struct {
		key string
		bad bool
		why string
	}{
		{"sealed", b.sealedOff(n), `sealed is false, and memory "keep" always seals: leave sealed out`},
		{"host_path_mode", b.HostPathWritable, `memory "keep" does not fit host_path_mode "rw", because others may change the folder while the server sleeps: leave one of them out`},
		{"scope", b.Scope == ScopeShared, `memory "keep" does not fit scope "shared", because the memory of a process belongs to its sessions: leave one of them out`},
		{"snapshot", b.Snapshot == SnapshotOff, `memory "keep" does not fit snapshot "off", because memory and workspace are kept together: leave one of them out`},
	} {
		if m, ok := n.get(other.key); other.bad && ok {
			r.fail(m.at, "%s: %s", r.what, other.why)
		}
	}
}

func (b *Box) sealedOff(n node) bool {
	m, ok := n.get("sealed")
	return ok && m.value.shape == boolean && !m.value.on
}

func (r *serverReader) locked(at int, field, profile string) {
	r.fail(at, "%s: %s is locked by the profile %q: leave it out or choose another profile", r.what, field, profile)
}

// profile reads the name of a box's profile, and gives the box the values of that profile.
func (r *serverReader) profile(m member, timed bool) profile {
	all := profiles()
	p, ok := all[m.value.text]
	if m.value.shape != text || !ok {
		r.word(func(string) { r.server.Box.Free = true }, append(slices.Sorted(maps.Keys(all)), noProfile)...).read(m, r.what+": profile")
		return profile{}
	}
	p.box.Profile = m.value.text
	r.server.Box = p.box
	switch {
	case !timed:
		r.server.ToolTimeout = p.tool
	case slices.Contains(p.locked, "tool_timeout_sec") && r.server.ToolTimeout != p.tool:
		// The method box checks the other locked keys, which are all in x-dormouse.box.
		r.locked(m.at, "tool_timeout_sec", m.value.text)
	}
	return p
}
