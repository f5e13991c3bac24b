package resourceserver

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/policy"
	"github.com/dormouse-mcp/dormouse/shared/core/address"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Settings say which tokens are accepted, and how they become identities. All fields but PublicURL
// and Groups are in the servers file, under x-dormouse.access. Issuer is the identity provider
// whose access tokens a [ResourceServer] takes, or at which package authserver has users sign in.
type Settings struct {
	Brokered

	// PublicURL is the URL at which clients reach the endpoint: https://HOST, or http on loopback,
	// perhaps with a path. The resource of a server is this URL and the server's path.
	PublicURL string `json:"-"`
	// Groups are the addresses at which several servers are served, with the servers at each:
	// "/mcp", "/g/dev/mcp".
	Groups map[string][]string `json:"-"`

	// Issuer is the only accepted issuer. It is compared byte for byte.
	Issuer string `json:"issuer"`
	// Name is the prefix of this issuer's principals, as in "NAME:SUBJECT". The default is the
	// issuer's host.
	Name string `json:"name,omitempty"`
	// JWKS is the URL of the issuer's keys. The default is the URL in the issuer's
	// metadata.
	JWKS string `json:"jwks_uri,omitempty"`
	// Algorithms are the accepted signature algorithms. The default is RS256, PS256,
	// ES256, ES384 and EdDSA.
	Algorithms []string `json:"algorithms,omitempty"`
	// Scope lists the scopes that a token needs, separated by spaces; nil means "mcp",
	// "" means none.
	Scope *string `json:"scope,omitempty"`
	// Audiences maps a server, or the address of a group, to the audiences that it
	// accepts besides its URLs. No two of them may share an audience.
	Audiences map[string][]string `json:"audiences,omitempty"`

	// Principal is the claim that names the principal; the default is "sub".
	Principal string `json:"principal,omitempty"`
	// Tenant is the tenant of all principals; the default, without TenantClaim, is
	// "default".
	Tenant string `json:"tenant,omitempty"`
	// TenantClaim is a claim whose value Tenants turns into a tenant.
	TenantClaim string            `json:"tenant_claim,omitempty"`
	Tenants     map[string]string `json:"tenants,omitempty"`
	// Claims are the claims that native servers (written in Go, part of this program) get.
	Claims []string `json:"claims,omitempty"`

	// Allow maps names of servers to the rules for their use; "*" stands for all servers that have
	// no entry. A server to which no entry applies admits no caller. If Allow is nil, every caller
	// with a token for a server may use it.
	Allow policy.Rules `json:"allow,omitempty"`
	// Scopes maps names of servers to optional scopes, and each scope to the tools that need it. A
	// tool may be a pattern that ends in "*".
	Scopes map[string]map[string][]string `json:"scopes,omitempty"`
	// Introspection, if not nil, asks the issuer whether a token is still valid (RFC
	// 7662).
	Introspection *Introspection `json:"introspection,omitempty"`
}

// Introspection says how to ask an issuer about tokens. A positive answer is good for 30
// seconds.
type Introspection struct {
	Endpoint string `json:"endpoint"`
	ClientID string `json:"client_id"`
}

const (
	baseScope     = "mcp"
	defaultTenant = "default"
	everyServer   = policy.EveryServer
)

// algorithms maps the supported algorithms to the kinds of keys that they need. All are
// asymmetric.
func algorithms() map[string]string {
	return map[string]string{
		"RS256": "RSA", "RS384": "RSA", "RS512": "RSA", "PS256": "RSA", "PS384": "RSA", "PS512": "RSA",
		"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519",
	}
}

// ReadSettings reads the JSON of Settings. Errors name the key and its possible values.
func ReadSettings(section []byte) (Settings, error) {
	var s Settings
	d := json.NewDecoder(bytes.NewReader(section))
	d.DisallowUnknownFields()
	err := d.Decode(&s)
	if err != nil {
		return Settings{}, fmt.Errorf("access: %w", wire.WrongShape(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Settings{}, errors.New("access: there is text after the JSON object; remove it")
	}
	return s, nil
}

// Complete checks the settings and sets the defaults. Its argument has the names of all servers.
// The error names the wrong setting and its possible values.
func (s Settings) Complete(servers []string) (Settings, error) {
	checks := []func() error{
		s.checkURLs, s.checkAlgorithms, s.checkIdentity, func() error { return s.checkServers(servers) }, func() error { return s.checkScopes(servers) }, s.checkRoles, s.checkClients,
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return Settings{}, err
		}
	}
	s.PublicURL = strings.TrimSuffix(s.PublicURL, "/")
	s.Name = s.name()
	if len(s.Algorithms) == 0 {
		s.Algorithms = []string{"RS256", "PS256", "ES256", "ES384", "EdDSA"}
	}
	if s.Scope == nil {
		s.Scope = new(baseScope)
	}
	s.Principal, s.Tenant = cmp.Or(s.Principal, "sub"), cmp.Or(s.Tenant, defaultTenant)
	return s, nil
}

// name returns the prefix of the issuer's principals.
func (s Settings) name() string {
	u, err := url.Parse(s.Issuer)
	if s.Name != "" || err != nil { // err is nil after Complete, which checks the issuer
		return s.Name
	}
	return strings.ToLower(u.Hostname())
}

func (s Settings) checkURLs() error {
	public, err := webURL(s.PublicURL)
	switch {
	case s.PublicURL == "":
		return errors.New("access: the URL that clients call is not set; tokens are for one such as https://mcp.example.com")
	case err != nil:
		return fmt.Errorf("access: the public URL: %w", err)
	case public.RawQuery != "":
		return fmt.Errorf("access: the public URL %q has a query; leave it out", s.PublicURL)
	case s.Issuer == "":
		return errors.New("access: no issuer is set; name the identity provider as its metadata does, such as https://login.example.com/tenant")
	}
	of := map[string]string{"issuer": s.Issuer}
	if s.JWKS != "" {
		of["jwks_uri"] = s.JWKS
	}
	if s.Introspection != nil {
		of["introspection.endpoint"] = s.Introspection.Endpoint
	}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if _, err := webURL(of[name]); err != nil {
			return fmt.Errorf("access: %s: %w", name, err)
		}
	}
	if s.Introspection != nil && (s.Introspection.ClientID == "") != (s.ClientSecret == "") {
		return errors.New("access: introspection needs both a client_id and the client_secret of x-dormouse.access, or neither")
	}
	if s.Introspection != nil && strings.HasPrefix(s.ClientSecret, "${") {
		return fmt.Errorf("access: client_secret: the variable %s is not set", s.ClientSecret)
	}
	return nil
}

// checkRoot refuses a public URL with a path. Only an endpoint that issues no tokens may have
// one: clients look for the metadata of an issuer at the root of its host.
func (s Settings) checkRoot() error {
	if u, err := url.Parse(s.PublicURL); err == nil && strings.Trim(u.Path, "/") != "" {
		return fmt.Errorf("access: the public URL %q has a path; give an endpoint that issues tokens a host of its own", s.PublicURL)
	}
	return nil
}

// webURL reads a URL that may be called: https, or http on loopback.
func webURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return nil, fmt.Errorf("%q is not a URL; want https://HOST", text)
	case u.Scheme != "https" && (u.Scheme != "http" || !address.Loopback(u.Hostname())):
		return nil, fmt.Errorf("%q is not https; http is for loopback only", text)
	case u.User != nil || u.Fragment != "" || strings.HasSuffix(text, "#"):
		return nil, fmt.Errorf("%q has a user or a fragment; leave it out", text)
	}
	return u, nil
}

func (s Settings) checkAlgorithms() error {
	known := algorithms()
	for _, a := range s.Algorithms {
		if known[a] == "" {
			return fmt.Errorf("access: algorithm %q is not supported; choose from %s", a, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
	}
	if s.Scope == nil {
		return nil
	}
	for scope := range strings.FieldsSeq(*s.Scope) {
		if !isScope(scope) {
			return fmt.Errorf("access: scope %q has characters that a scope must not have; use visible ASCII characters except quotes and backslashes", scope)
		}
	}
	return nil
}

// given lists claims whose value, such as an address, another person may get later. That person
// must not get the sessions of the earlier one.
func given() []string {
	return []string{"email", "name", "nickname", "phone_number", "preferred_username", "upn", "unique_name"}
}

func (s Settings) checkIdentity() error {
	tenants := slices.Sorted(maps.Values(s.Tenants))
	if s.Tenant != "" {
		tenants = append(tenants, s.Tenant)
	}
	for _, t := range tenants {
		if !isName(t) || len(t) > 64 {
			return fmt.Errorf("access: %q is not a name of a tenant; use up to 64 letters, digits and . _ -", t)
		}
	}
	switch {
	case slices.Contains(given(), s.Principal):
		return fmt.Errorf("access: principal: the provider may give the %q of one person to another later; name a claim that never changes hands, such as sub", s.Principal)
	case s.Name != "" && (!isName(s.Name) || len(s.Name) > 64):
		return fmt.Errorf("access: name %q; use up to 64 letters, digits and . _ -", s.Name)
	case (s.TenantClaim == "") != (len(s.Tenants) == 0):
		return errors.New("access: tenant_claim needs tenants, and tenants needs tenant_claim: name the claim, and the tenant for each of its values")
	case s.TenantClaim != "" && s.Tenant != "":
		return errors.New("access: tenant and tenant_claim are both set; remove one of them")
	}
	return nil
}

// isName reports whether a text begins with a letter or digit, and otherwise has only
// letters, digits, "-", "_" and ".".
func isName(text string) bool {
	letter := func(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' }
	for i := range len(text) {
		if c := text[i]; !letter(c) && (i == 0 || c != '-' && c != '_' && c != '.') {
			return false
		}
	}
	return text != ""
}

func (s Settings) checkServers(servers []string) error {
	audiences := slices.DeleteFunc(slices.Sorted(maps.Keys(s.Audiences)), func(name string) bool { return s.Groups[name] != nil })
	for _, name := range slices.Concat(audiences, slices.Sorted(maps.Keys(s.Allow))) {
		if name != everyServer && !slices.Contains(servers, name) {
			return fmt.Errorf("access: there is no server %q; the servers are %s", name, strings.Join(servers, ", "))
		}
	}
	whose := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(s.Audiences)) {
		if name == everyServer {
			return errors.New("access: an audience for every server would let a token of one in at all others; name a server")
		}
		for _, a := range s.Audiences[name] {
			if other := whose[a]; a == "" || other != "" && other != name {
				return fmt.Errorf("access: audience %q of server %q is empty, or also that of server %q; each server needs its own", a, name, other)
			}
			whose[a] = name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Allow)) {
		if err := s.Allow[name].Check(); err != nil {
			return fmt.Errorf("access: allow for %q: %w", name, err)
		}
	}
	return nil
}
