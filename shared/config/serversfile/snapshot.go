package serversfile

import (
	"maps"
	"slices"
	"strings"
)

// Snapshot says whether, and for which sessions, the workspace of a process is kept
// while its box sleeps.
type Snapshot string

// The values of Snapshot.
const (
	SnapshotOff       Snapshot = "off"
	SnapshotSession   Snapshot = "session"   // for the session, until it ends
	SnapshotPrincipal Snapshot = "principal" // for all sessions of a principal: the workspace of the process that stopped last
	// SnapshotShared is the value for scope "shared"; the file cannot set it.
	SnapshotShared Snapshot = "shared"
)

// WorkspaceVariable stands for the path of a process's workspace, in args and env.
const WorkspaceVariable = "${" + workspaceName + "}"

const workspaceName = "workspaceFolder"

// Workspace reports whether each process works in a folder of its own: a copy of the host path,
// or else an empty folder. Other servers work in the folder of the servers file, or on AWS in the
// runner's working folder.
func (s Server) Workspace() bool {
	names := func(text string) bool {
		return strings.Contains(text, WorkspaceVariable) || strings.Contains(text, "${"+principalFileKind+":")
	}
	return s.Box.Confined() || s.Box.Sealed || s.Box.HostPath != "" || s.Box.Snapshot == SnapshotSession || s.Box.Snapshot == SnapshotPrincipal ||
		slices.ContainsFunc(s.Args, names) || slices.ContainsFunc(slices.Collect(maps.Values(s.Env)), names)
}

// Kept returns for which sessions the workspace of a process is saved while its box
// sleeps. A writable host path is not saved, because it belongs to the machine.
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

// Spreads reports whether the sessions of one tenant may be in several boxes. It returns true if
// neither a process nor its saved workspace belongs to several sessions.
func (s Server) Spreads() bool {
	alone := s.Box.Scope == "" || s.Box.Scope == ScopeSession
	return alone && !s.InPlace() && (s.Kept() == SnapshotOff || s.Kept() == SnapshotSession)
}
