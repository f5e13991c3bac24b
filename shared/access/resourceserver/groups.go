package resourceserver

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// A group of servers at one address is a resource of its own. A token for a group is good at its
// address only, for the servers of the group that the user may use. A parameter for the name of a
// server also takes the address of a group, such as "/mcp" or "/g/dev/mcp".

// IsGroup reports whether a name is the address of a group. Tokens for a group carry the claims of their
// users: at each request, the rules of each server of the group decide by these claims.
func IsGroup(name string) bool { return strings.HasPrefix(name, "/") }

// Members returns the servers at the address of a group. For a server, it returns only that server.
func (s Settings) Members(name string) []string {
	if !IsGroup(name) {
		return []string{name}
	}
	return s.Groups[name]
}

// VerifyGroup returns the identity of a token at each of the servers that its user may use. The
// token must be for the group. If group is "", servers that the token is not for are left out.
// VerifyGroup neither reads nor writes a store. It asks the issuer for unknown keys. With
// introspection it also asks about a token that it has not asked about within 30 seconds.
//
// Errors: Unauthenticated if the token is invalid, or not for the group or any of the servers.
// Forbidden if the token lacks a scope, or its identity may use none of the servers. Unavailable.
func (s *ResourceServer) VerifyGroup(ctx context.Context, token, group string, servers []string) (map[string]storage.Identity, error) {
	g, err := s.grant(ctx, token)
	if err != nil {
		return nil, err
	}
	if servers, err = s.meantFor(g, group, servers); err != nil {
		return nil, err
	}
	who, err := s.identity(g, token)
	if err != nil {
		return nil, err
	}
	return s.settings.each(who, g.claims, servers)
}

// ConfirmMembers returns those of the servers that a caller may still use, whose token was valid
// earlier. The argument text is the Credential of the caller's identity, and group is that of
// VerifyGroup. Without introspection, only the expiry of the token is checked. Costs and errors are as
// for VerifyGroup.
func (s *ResourceServer) ConfirmMembers(ctx context.Context, text, group string, servers []string) ([]string, error) {
	g, err := s.confirmed(ctx, text)
	if err != nil || s.introspec == nil {
		return servers, err
	}
	if servers, err = s.meantFor(g, group, servers); err != nil {
		return nil, err
	}
	may, err := s.settings.each(s.settings.named(g.claims), g.claims, servers)
	return slices.DeleteFunc(slices.Clone(servers), func(name string) bool { _, ok := may[name]; return !ok }), err
}

// meantFor returns the servers that a token is for: all of them if it is for the group, and for the
// group "" those that it is for itself.
func (s *ResourceServer) meantFor(g grant, group string, servers []string) (all []string, err error) {
	if group != "" {
		return servers, s.meant(g, group)
	}
	for _, server := range servers {
		why := s.meant(g, server)
		if why == nil {
			all = append(all, server)
		} else if err == nil || storage.CodeOf(why) == storage.Forbidden {
			err = why
		}
	}
	if len(all) > 0 {
		err = nil
	}
	return all, err
}

// each returns the servers to which the claims admit the user, with the user's identity and
// ToolRules at each.
func (s Settings) each(who storage.Identity, claims map[string]any, servers []string) (map[string]storage.Identity, error) {
	all := map[string]storage.Identity{}
	var refused error
	for _, server := range servers {
		if err := s.Admit(server, claims); err != nil {
			refused = err
			continue
		}
		who.ToolRules = s.ToolRules(server, claims)
		all[server] = who
	}
	if len(all) == 0 {
		return nil, storage.NameRefused(refused, storage.Identity{Tenant: who.Tenant, Principal: who.Principal})
	}
	return all, nil
}

// VerifyGroup returns the identity of a token at each of the servers that its user may use. The
// token must be for the group. If group is "", all servers but the one that the token is for are
// left out.
//
// Errors: Unauthenticated if the token is invalid, revoked, or for another server. Forbidden if the
// caller may use none of the servers, or exchanged a key for the token that may not any more.
// Unavailable if the list of revoked grants, or the key, cannot be read.
func (s *Issued) VerifyGroup(ctx context.Context, token, group string, servers []string) (map[string]storage.Identity, error) {
	if t, ok := OpenToken(s.sealer, token); group == "" && ok && slices.Contains(servers, t.Server) {
		group, servers = t.Server, []string{t.Server}
	}
	t, claims, err := s.open(token, group)
	if err != nil {
		return nil, err
	}
	who := t.identity()
	servers, err = s.ConfirmMembers(ctx, who.Credential, group, servers)
	switch {
	case err != nil:
		return nil, storage.NameRefused(err, who)
	case t.Key == "" && IsGroup(group):
		return s.settings.each(who, claims, servers)
	}
	all := map[string]storage.Identity{}
	for _, server := range servers {
		if t.Key != "" { // a token that was exchanged for an API key fits all rules for tools, as the key does
			rule, _ := s.settings.Allow.Of(server)
			who.ToolRules = slices.Sorted(maps.Keys(rule.Tools))
		}
		all[server] = who
	}
	return all, nil
}

// open returns the contents of a token that is for a server or a group, and has not expired, and the
// claims in it.
func (s *Issued) open(token, name string) (t Token, claims map[string]any, err error) {
	t, ok := OpenToken(s.sealer, token)
	claims = map[string]any{}
	switch {
	case !ok:
		return t, nil, badToken("it is not one of this endpoint")
	case t.Expires <= time.Now().Unix():
		return t, nil, storage.NameRefused(badToken("it has expired"), t.identity())
	case t.Server != name:
		return t, nil, storage.NameRefused(badToken("it is for another resource; get one whose resource is the URL of this server"), t.identity())
	case len(t.Claims) > 0 && json.Unmarshal(t.Claims, &claims) != nil:
		return t, nil, badToken("its claims cannot be read")
	}
	return t, claims, nil
}

func (t Token) identity() storage.Identity {
	return storage.Identity{Tenant: t.Tenant, Principal: t.Principal, Credential: credentialOf(t), Props: t.Props, Scopes: t.Scopes, Scoped: true, ToolRules: t.ToolRules}
}
