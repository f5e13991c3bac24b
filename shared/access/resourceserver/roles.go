package resourceserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Console stands in place of a server's name in tokens for the web console. No server has this name,
// and no server accepts such a token.
const Console = "/console/"

const (
	// ConsoleClient is the id of the console as a client of the authorization server. Only
	// this client gets tokens for Console, and it gets no others.
	ConsoleClient = "dormouse-console"
	// ConsolePage is the path of the page that gets the authorization codes.
	ConsolePage = "/console/home"
)

// consoleRoles are the roles at the console. A user whom several rules fit gets the role that
// comes first here.
func consoleRoles() []storage.Role {
	return []storage.Role{storage.RoleOperator, storage.RoleAuditor, storage.RoleViewer}
}

func (s Settings) checkRoles() error {
	for _, name := range slices.Sorted(maps.Keys(s.Roles)) {
		if !slices.Contains(consoleRoles(), storage.Role(name)) {
			return fmt.Errorf("access: roles: %q is no role of the console; use viewer, auditor or operator", name)
		}
		if err := s.Roles[name].Check(); err != nil {
			return fmt.Errorf("access: roles for %q: %w", name, err)
		}
		if s.Roles[name].Tools != nil {
			return fmt.Errorf("access: roles for %q: tools are rules of servers; leave them out", name)
		}
	}
	if _, taken := s.Clients[ConsoleClient]; taken && len(s.Roles) > 0 {
		return errors.New("access: clients: " + ConsoleClient + " is the console itself; use another id")
	}
	return nil
}

// Role returns the role of a user with these claims at the console, "" for none.
func (s Settings) Role(claims map[string]any) storage.Role {
	for _, role := range consoleRoles() {
		if rule, ok := s.Roles[string(role)]; ok && rule.Fits(claims) {
			return role
		}
	}
	return ""
}

func (s Settings) admitToConsole(claims map[string]any) error {
	if s.Role(claims) == "" {
		return storage.Errorf(storage.Forbidden, "you may not use the console; ask its operator for a role")
	}
	return nil
}

// Operator returns the identity of a token for the console, and the user's role by the
// current rules.
//
// Errors: Unauthenticated if the token is invalid, revoked, or for something else. Forbidden
// if its user has no role any more. Unavailable.
func (s *Issued) Operator(ctx context.Context, token string) (storage.Identity, storage.Role, error) {
	t, claims, err := s.open(token, Console)
	if err == nil && t.Key != "" {
		err = badToken("it was exchanged for an API key")
	}
	if err == nil {
		err = s.settings.admitToConsole(claims)
	}
	if err != nil {
		return storage.Identity{}, "", err
	}
	who := t.identity()
	_, err = s.ConfirmMembers(ctx, who.Credential, Console, nil)
	return who, s.settings.Role(claims), err
}

// SignIn returns the name of the provider at which users sign in, and the URL of the endpoint
// at which they sign in to the console. The URL is "" if no rule gives anybody a role.
func (s Settings) SignIn() (name, endpoint string) {
	if len(s.Roles) > 0 {
		endpoint = strings.TrimSuffix(s.PublicURL, "/")
	}
	return s.name(), endpoint
}
