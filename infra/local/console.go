package local

import (
	"net"
	"net/http"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/api"
	"github.com/dormouse-mcp/dormouse/shared/auth"
	"github.com/dormouse-mcp/dormouse/shared/console"
	"github.com/dormouse-mcp/dormouse/shared/front"
)

// consoleOf returns the console of a machine. What it asks for is in no bill: a machine
// costs the same whether somebody looks at it or not.
func consoleOf(m *machine) *console.Console {
	return console.New(console.Options{
		Secret: m.folder.Secret, Hosts: m.public.serves, MCP: m.functions.web(),
		API: func(owner bool) http.Handler {
			o := m.functions.operators()
			o.Info.URL, o.Meter = m.public.address(0), nil
			if owner {
				o.Caller = func(*http.Request, auth.Right) (api.Caller, error) {
					return api.Machine("the operator of this machine"), nil
				}
			}
			return api.New(o)
		},
	})
}

// serves reports whether the endpoint for HTTP serves this Host.
func (l *listeners) serves(host string) bool {
	served := l.servedHosts(l.Listen)
	if served == nil {
		return front.NamesLoopback(host)
	}
	name := host
	if without, _, err := net.SplitHostPort(host); err == nil {
		name = without
	}
	return slices.Contains(served, "*") || slices.Contains(served, name) || slices.Contains(served, "["+name+"]")
}
