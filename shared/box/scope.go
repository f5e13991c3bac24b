package box

// Scope says which sessions share a process.
type Scope string

// wide reports whether several sessions may share a process.
func (s Scope) wide() bool { return s == ScopePrincipal || s == ScopeShared }

// Name returns the name of the process for a session. A process of one session has the session's
// id as its name. A shared process is named "shared", or "principal-" and the argument principal,
// which is a hash. A session without a known principal shares its process only in ScopeShared.
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

// The scopes. The zero value means ScopeSession.
const (
	ScopeSession   Scope = "session"   // each session has its own process
	ScopePrincipal Scope = "principal" // all sessions of a principal share a process
	ScopeShared    Scope = "shared"    // all sessions of the box share a process
)
