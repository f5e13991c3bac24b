package serversfile

import (
	"maps"
	"slices"
	"strings"
)

// The kinds of the templates for a key or token that a principal has at a third party.
const (
	principalKind     = "principal"      // ${principal:NAME} is the secret
	principalFileKind = "principal_file" // ${principal_file:NAME} is the path of a file with it
)

// Principal returns the names in `${principal:NAME}` and `${principal_file:NAME}` of the server's
// environment and headers, in order, each once.
func (s Server) Principal() []string {
	names := map[string]bool{}
	for _, value := range slices.Concat(slices.Collect(maps.Values(s.Env)), slices.Collect(maps.Values(s.Remote.Headers))) {
		for _, kind := range []string{principalKind, principalFileKind} {
			for _, rest := range strings.Split(value, "${"+kind+":")[1:] {
				if name, _, closed := strings.Cut(rest, "}"); closed && validName(name) {
					names[name] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Anonymous reports whether each session has a process of its own that gets no values of its
// principal.
func (s Server) Anonymous() bool {
	return !s.InPlace() && (s.Box.Scope == "" || s.Box.Scope == ScopeSession) && len(s.Principal()) == 0
}
