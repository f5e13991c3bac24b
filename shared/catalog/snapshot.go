package catalog

import (
	"maps"
	"slices"
	"strings"
)

// Snapshot says whether what a process changes in its workspace is kept while its
// box sleeps.
type Snapshot string

// The ways to keep it.
const (
	SnapshotOff       Snapshot = "off"
	SnapshotSession   Snapshot = "session"   // for the session, until it ends
	SnapshotPrincipal Snapshot = "principal" // for all sessions of a principal: what the last to stop has left
	// SnapshotShared is what scope "shared" makes of it; it is not said in the file.
	SnapshotShared Snapshot = "shared"
)

// WorkspaceVariable stands, in args and env, for the workspace of a process, which
// is not known before the process is started.
const WorkspaceVariable = "${" + workspaceName + "}"

const workspaceName = "workspaceFolder"

// Workspace says whether each process has a folder of its own to work in: a copy of
// the host path, or else an empty one. It has if something in the file asks for it;
// other servers work in the folder of the servers file, or on AWS where the runner does.
func (s Server) Workspace() bool {
	names := func(text string) bool { return strings.Contains(text, WorkspaceVariable) }
	return s.Box.Confined() || s.Box.HostPath != "" || s.Box.Snapshot == SnapshotSession || s.Box.Snapshot == SnapshotPrincipal ||
		slices.ContainsFunc(s.Args, names) || slices.ContainsFunc(slices.Collect(maps.Values(s.Env)), names)
}

// Kept says for whom the workspace of a process is kept while its box sleeps. A
// host path that is written to itself is nobody's but the host's.
func (s Server) Kept() Snapshot {
	switch {
	case !s.Workspace(), s.Box.HostPath != "" && s.Box.HostPathWritable:
		return SnapshotOff
	case s.Box.Snapshot == SnapshotOff:
		return SnapshotOff
	case s.Box.Scope == ScopePrincipal:
		return SnapshotPrincipal
	case s.Box.Scope == ScopeShared:
		return SnapshotShared
	case s.Box.Snapshot == "":
		return SnapshotSession
	default:
		return s.Box.Snapshot
	}
}
