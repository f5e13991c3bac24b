package local

import (
	"cmp"
	"errors"
	"net"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/oauth"
)

// Variables that say of tokens what the servers file does not, as for the functions.
const (
	issuerEnv              = "DORMOUSE_ISSUER"
	introspectionSecretEnv = "DORMOUSE_INTROSPECTION_SECRET" //nolint:gosec // the name of a variable
)

// tokens says which tokens are taken; nil: none.
func (m *machine) tokens() (*oauth.Settings, error) {
	if m.public.access() != AccessIDP {
		return nil, nil
	}
	s, err := wiring.ReadAccess(m.servers, m.public.publicURL())
	if err != nil {
		return nil, err
	}
	if s.PublicURL == "" {
		return nil, errors.New("tokens are for one URL, which is not known; set --public-url, or a port of loopback with --listen")
	}
	s.Issuer, s.Secret = cmp.Or(m.environ.get(issuerEnv), s.Issuer), m.environ.get(introspectionSecretEnv)
	return s, nil
}

// publicURL is what tokens call this endpoint: its public URL, or the address of one that
// listens on loopback; "" if that is not known before it listens.
func (l *listeners) publicURL() string {
	_, port, err := net.SplitHostPort(l.Listen)
	switch {
	case l.PublicURL != "":
		return l.PublicURL
	case err == nil && port != "0" && isLoopback(l.Listen):
		return "http://" + l.Listen
	}
	return ""
}
