package local

import (
	"net/http"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/operate/console"
)

// consoleOf returns the console of a machine. Requests of the console are not billed, so
// that a machine costs the same with visitors and without. Where functions are programs,
// this console only makes links, and a function serves the page, as on AWS.
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

// signInOf returns the name of the provider at which people sign in to the console of a
// machine, and the provider's endpoint for that; see [console.Options].
func signInOf(m *machine) (name, endpoint string) {
	if m.public.access() != AccessOAuth {
		return "", ""
	}
	s, err := m.tokens(m.servers.Load())
	if err != nil { // the file is as it was served
		return "", ""
	}
	return s.SignIn()
}

// serves reports whether the endpoint for HTTP serves this Host.
func (l *listeners) serves(host string) bool {
	return transport.ServesHost(l.servedHosts(l.Listen), host)
}
