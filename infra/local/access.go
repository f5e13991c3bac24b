package local

import (
	"errors"
	"net"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
)

// tokens returns the settings for access tokens, or nil if [Config].Access allows none.
func (m *machine) tokens(servers *serversfile.File) (*resourceserver.Settings, error) {
	access, at := m.public.access(), m.public.publicURL()
	if access != AccessIDP && access != AccessOAuth {
		return nil, nil
	}
	if at == "" {
		return nil, errors.New("tokens are for one URL, which is not known; set --public-url, or a port of loopback with --listen")
	}
	if access == AccessOAuth {
		s, err := wiring.ReadBroker(servers, at, "", m.public.onLoopback())
		if err == nil && s.Issuer == "" && !m.public.onLoopback() {
			return nil, errors.New("--access oauth has no identity provider, and others than this machine reach the endpoint: name the provider as x-dormouse.access.issuer, or use --access keys; on loopback anybody signs in with any name")
		}
		return s, err
	}
	return wiring.ReadAccess(servers, at, "")
}

// publicURL returns the URL that access tokens must name as their audience: the public URL, or
// else the one for Listen if that names loopback. It returns "" for port 0, because that port is
// known only once the endpoint listens.
func (l *listeners) publicURL() string {
	_, port, err := net.SplitHostPort(l.Listen)
	switch {
	case l.PublicURL != "":
		return l.PublicURL
	case err == nil && port != "0" && transport.NamesLoopback(l.Listen):
		return l.scheme() + l.Listen
	}
	return ""
}
