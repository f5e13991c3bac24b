package resourceserver

import (
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/config/policy"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Rule says which callers may use a server, and which of its tools.
type Rule = policy.Rule

// Admit checks whether a caller with these claims may use a server, or one of the servers of
// a group, or the console. Errors: Forbidden, which names the caller, as [storage.NameRefused]
// does.
func (s Settings) Admit(server string, claims map[string]any) error {
	return storage.NameRefused(s.admit(server, claims), s.named(claims))
}

func (s Settings) admit(server string, claims map[string]any) error {
	if server == Console {
		return s.admitToConsole(claims)
	}
	if IsGroup(server) {
		if slices.ContainsFunc(s.Groups[server], func(member string) bool { return s.admit(member, claims) == nil }) {
			return nil
		}
		return storage.Errorf(storage.Forbidden, "you may use no server at this address; ask its operator for access")
	}
	if s.Allow == nil {
		return nil
	}
	if rule, ok := s.Allow.Of(server); !ok || !rule.Fits(claims) {
		return storage.Errorf(storage.Forbidden, "you may not use this server; ask its operator for access")
	}
	return nil
}

// Relevant returns the claims that Admit and ToolRules read for a resource, without values
// that no rule names.
func (s Settings) Relevant(resource string, claims map[string]any) map[string]any {
	if resource == Console {
		return s.Roles.Relevant(claims)
	}
	return s.Allow.Relevant(claims)
}

// ToolRules returns the value for [storage.Identity].ToolRules: the keys of the server's [Rule].Tools
// whose rules fit these claims. It returns nil for a group.
func (s Settings) ToolRules(server string, claims map[string]any) []string {
	if IsGroup(server) {
		return nil
	}
	rule, _ := s.Allow.Of(server)
	return rule.ToolsOf(claims)
}

// Tools returns which tools of a server a caller may use. If the rule for a tool was made
// after the caller signed in, the caller may not use the tool. Callers with API keys may
// use all tools.
func (r resources) Tools(who storage.Identity, server string) (tools storage.ToolFilter) {
	rule, _ := r.settings.Allow.Of(server)
	if !who.Scoped {
		return tools
	}
	for tool := range rule.Tools {
		if slices.Contains(who.ToolRules, tool) {
			tools.Allow = append(tools.Allow, tool)
		} else {
			tools.Deny = append(tools.Deny, tool)
		}
	}
	if len(tools.Deny) == 0 {
		return storage.ToolFilter{}
	}
	slices.Sort(tools.Allow)
	slices.Sort(tools.Deny)
	return tools
}

// Wants reports whether claims lack a claim that the settings name.
func (s Settings) Wants(claims map[string]any) bool {
	wanted := append(append([]string{s.Principal}, s.Claims...), append(s.Allow.Claims(), s.Roles.Claims()...)...)
	if s.TenantClaim != "" {
		wanted = append(wanted, s.TenantClaim)
	}
	return slices.ContainsFunc(wanted, func(name string) bool { return claims[name] == nil })
}
