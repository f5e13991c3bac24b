package local

import (
	"cmp"
	"errors"
	"net"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/oauth"
)

// Variables with settings for tokens that are not in the servers file. The functions
// read the same.
const (
	issuerEnv              = "DORMOUSE_ISSUER"
	introspectionSecretEnv = "DORMOUSE_INTROSPECTION_SECRET" //nolint:gosec // the name of a variable
)

// tokens returns the settings for tokens, or nil if the machine takes none.
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

// publicURL returns the URL of this endpoint in tokens: its public URL, or a listening
// address on loopback. It returns "" if the port is not known before the endpoint
// listens.
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
