package local

import (
	"net/http"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/operate/console"
)

// consoleOf returns the console of a machine. Its requests are not metered, so that visitors of
// the console change no bill. If m.functions runs in other processes, one of them serves the
// page, as on AWS, and this console only creates links to it.
func consoleOf(m *machine) *console.Console {
	return console.New(console.Options{
		Secret: m.folder.Secret, Tickets: apikey.NewTickets(m.functions.Records()), Hosts: m.public.serves, MCP: m.functions.Web(),
		SignIn: func() (name, endpoint string) { return signInOf(m) },
		API: func(owner bool) http.Handler {
			o := m.functions.Operators()
			o.Info.URL, o.Meter = m.public.address(0), nil
			if owner {
				o.Caller = func(*http.Request, apikey.Right) (api.Caller, error) {
					return api.Machine("the operator of this machine"), nil
				}
			}
			return api.New(o)
		},
	})
}

// signInOf returns the name of the identity provider at which people sign in to the console, and
// the endpoint of the provider for that. Both are "" if nobody can sign in.
func signInOf(m *machine) (name, endpoint string) {
	if m.public.access() != AccessOAuth {
		return "", ""
	}
	s, err := m.tokens(m.servers.Load())
	if err != nil { // does not happen: the machine serves this file, so it was checked
		return "", ""
	}
	return s.SignIn()
}

// serves reports whether the HTTP endpoint accepts this value of the Host header.
func (l *listeners) serves(host string) bool {
	return transport.ServesHost(l.servedHosts(l.Listen), host)
}
