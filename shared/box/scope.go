package box

// Scope says which sessions share a process.
type Scope string

// wide reports whether several sessions may share a process.
func (s Scope) wide() bool { return s == ScopePrincipal || s == ScopeShared }

// Name returns the name of a session's process. If the session has a process of its own,
// the name is the session's id. A shared process is named "shared", or "principal-" and
// the principal. A session whose principal is not known shares its process only in
// ScopeShared.
func (s Scope) Name(sessionID, principal string) string {
	switch {
	case s == ScopeShared:
		return "shared"
	case s == ScopePrincipal && principal != "":
		return "principal-" + principal
	default:
		return sessionID
	}
}

// The scopes. The zero value is ScopeSession.
const (
	ScopeSession   Scope = "session"   // each session has its own process
	ScopePrincipal Scope = "principal" // all sessions of a principal share one
	ScopeShared    Scope = "shared"    // all sessions of the box share one
)
