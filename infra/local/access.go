package local

import (
	"errors"
	"net"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
)

// tokens returns the settings for tokens, or nil if the machine takes none.
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

// publicURL returns the URL of this endpoint in tokens: its public URL, or a listening
// address on loopback. It returns "" if the port is not known before the endpoint
// listens.
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
