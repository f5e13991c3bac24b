package resourceserver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/policy"
)

// Brokered are the settings of the authorization server (package authserver).
type Brokered struct {
	// ClientID and ClientSecret identify Dormouse at the issuer. The secret also authenticates
	// requests of [Introspection].
	ClientID     string `json:"client_id,omitempty"`
	ClientSecret string `json:"client_secret,omitempty"`
	// LoginScopes are asked for at the issuer; nil means openid, profile and email.
	LoginScopes []string `json:"login_scopes,omitempty"`
	// Clients are the registered clients, by their ids.
	Clients map[string]Client `json:"clients,omitempty"`
	// ClientHosts are the hosts whose client ID metadata documents are fetched; nil
	// means any.
	ClientHosts []string `json:"client_hosts,omitempty"`
	// Enterprise are issuers whose assertions are exchanged for tokens (ID-JAG).
	Enterprise []Enterprise `json:"enterprise,omitempty"`
	// Roles maps viewer, auditor and operator to the rules for users who sign in to the console. A
	// user whom several rules fit is an operator, or else an auditor. Without Roles, no user can
	// sign in to the console.
	Roles policy.Rules `json:"roles,omitempty"`
}

// Client is a client that the operator has registered.
type Client struct {
	Name string `json:"name,omitempty"`
	// RedirectURIs are where codes may be sent. The port of a loopback address does not
	// matter.
	RedirectURIs []string `json:"redirect_uris"`
	// Secret authenticates the client; "" for a public client.
	Secret string `json:"secret,omitempty"`
}

// Enterprise is an issuer of assertions: JWTs that say which user of a company a client
// acts for.
type Enterprise struct {
	Issuer string `json:"issuer"`
	// Name is the prefix of the principals of the issuer's users. The default is the name for the
	// sign-in if users also sign in at this issuer, or else the issuer's host.
	Name string `json:"name,omitempty"`
	// JWKS is the URL of the issuer's keys; the default is the URL in its metadata.
	JWKS string `json:"jwks_uri,omitempty"`
}

// checkClients checks the clients and the issuers of companies that the authorization server accepts.
func (s Settings) checkClients() error {
	for _, id := range slices.Sorted(maps.Keys(s.Clients)) {
		if id == "" || strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' }) || strings.HasPrefix(id, "https://") {
			return fmt.Errorf("access: clients: %q is no id; use visible characters without spaces, and no URL", id)
		}
		if len(s.Clients[id].RedirectURIs) == 0 {
			return fmt.Errorf("access: client %q has no redirect_uris", id)
		}
	}
	for _, e := range s.Enterprise {
		if _, err := webURL(e.Issuer); err != nil {
			return fmt.Errorf("access: enterprise: %w", err)
		}
		if e.Name != "" && !isName(e.Name) {
			return fmt.Errorf("access: enterprise: name %q; use letters, digits and . _ -", e.Name)
		}
	}
	return nil
}

// CheckBroker checks the settings that only package authserver uses. [Settings.Complete] does not
// check them. The error names the wrong setting and its possible values.
func (s Settings) CheckBroker() error {
	if err := s.checkRoot(); err != nil {
		return err
	}
	secrets := map[string]string{"client_secret": s.ClientSecret}
	for id, c := range s.Clients {
		secrets["secret of client "+id] = c.Secret
	}
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		if strings.HasPrefix(secrets[name], "${") {
			return fmt.Errorf("access: %s: the variable %s is not set", name, secrets[name])
		}
	}
	if *s.Scope == "" || len(strings.Fields(*s.Scope)) > 1 {
		return errors.New(`access: scope: the broker's tokens need exactly one base scope; leave "scope" out for "mcp"`)
	}
	return nil
}
