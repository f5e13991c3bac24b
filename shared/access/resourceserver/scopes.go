package resourceserver

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// scopeError is a refusal for want of a scope. A token with the wanted scopes would be accepted.
type scopeError struct {
	refusal *storage.Error
	wanted  []string
}

func (e *scopeError) Error() string { return e.refusal.Message }

// Wanted returns the scopes that a token needs.
func (e *scopeError) Wanted() []string { return e.wanted }

func (e *scopeError) Unwrap() error { return e.refusal }

func lacks(wanted []string) error {
	return &scopeError{storage.Errorf(storage.Forbidden, "the token lacks a scope; get one with the scope %s", strings.Join(wanted, " ")), wanted}
}

// Permit checks whether a caller may call tools of a server: the rules for these tools admit the
// caller, and its token has their scopes. Neither check applies to callers with API keys, who have
// no token.
//
// Errors: Forbidden. If scopes are missing, the result of Challenge lists all scopes of this call,
// and the optional ones that the token has. If a rule refuses, Challenge returns "".
func (r resources) Permit(who storage.Identity, server string, tools []string) error {
	may := r.Tools(who, server)
	for _, tool := range tools {
		if !may.Allows(tool) {
			// No login would help, so Challenge returns "" for this error.
			return storage.Errorf(storage.Forbidden, "you may not use the tool %.128q of this server; ask its operator for access", tool)
		}
	}
	if !who.Scoped || len(r.settings.Scopes[server]) == 0 {
		return nil
	}
	wanted := strings.Fields(*r.settings.Scope)
	for _, scope := range slices.Sorted(maps.Keys(r.settings.Scopes[server])) {
		if slices.ContainsFunc(tools, func(tool string) bool { return among(r.settings.Scopes[server][scope], tool) }) {
			wanted = append(wanted, scope)
		}
	}
	if missing(who.Scopes, wanted) {
		return lacks(append(wanted, r.settings.kept(who.Scopes, wanted)...))
	}
	return nil
}

// kept returns the optional scopes of a token (has) that the call does not need (wanted). A client
// asks only for the scopes in the WWW-Authenticate header. Without the kept scopes, a caller at
// the address of several servers would lose its scope for one server when it gets a scope for
// another.
func (s Settings) kept(has, wanted []string) (all []string) {
	for _, scope := range has {
		optional := slices.ContainsFunc(slices.Collect(maps.Values(s.Scopes)), func(of map[string][]string) bool { return of[scope] != nil })
		if optional && !slices.Contains(wanted, scope) {
			all = append(all, scope)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// among reports whether a tool has one of these names. A name that ends in "*" stands for all
// names with this beginning.
func among(patterns []string, tool string) bool {
	tool = storage.FoldTool(tool)
	return slices.ContainsFunc(patterns, func(p string) bool {
		p = storage.FoldTool(p)
		begin, all := strings.CutSuffix(p, "*")
		return p == tool || all && strings.HasPrefix(tool, begin)
	})
}

// Known returns the scopes that every token needs, followed by those in the argument wanted that a
// server or a group has, sorted. Known drops all other scopes without an error, because clients ask
// for scopes that they know from elsewhere.
func (s Settings) Known(server string, wanted []string) []string {
	known := strings.Fields(*s.Scope)
	has := map[string]bool{}
	for _, member := range s.Members(server) {
		for scope := range s.Scopes[member] {
			has[scope] = true
		}
	}
	for _, scope := range slices.Sorted(maps.Keys(has)) {
		if slices.Contains(wanted, scope) {
			known = append(known, scope)
		}
	}
	return known
}

func (s Settings) checkScopes(servers []string) error {
	for _, name := range slices.Sorted(maps.Keys(s.Scopes)) {
		if !slices.Contains(servers, name) {
			return fmt.Errorf("access: scopes: there is no server %q; the servers are %s", name, strings.Join(servers, ", "))
		}
		for _, scope := range slices.Sorted(maps.Keys(s.Scopes[name])) {
			if !isScope(scope) {
				return fmt.Errorf("access: scopes for %q: %q is not a name of a scope; use visible ASCII characters except quotes and backslashes", name, scope)
			}
			for _, tool := range s.Scopes[name][scope] {
				if begin := strings.TrimSuffix(tool, "*"); tool == "" || strings.Contains(begin, "*") {
					return fmt.Errorf("access: scopes for %q: %q is neither the name of a tool nor the beginning of one followed by *", name, tool)
				}
			}
		}
	}
	return nil
}

// isScope reports whether a text is one scope (RFC 6749 §3.3).
func isScope(text string) bool {
	odd := func(c rune) bool { return c <= ' ' || c > '~' || c == '"' || c == '\\' }
	return text != "" && !strings.ContainsFunc(text, odd)
}
