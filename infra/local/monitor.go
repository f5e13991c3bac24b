package local

import (
	"net/http"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/operate/console"
)

// monitored serves clients, the console, /healthz and /metrics.
type monitored struct {
	machine          *machine
	clients, console http.Handler
}

// ServeHTTP implements http.Handler.
func (m *monitored) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case path == "/healthz":
		health(m.machine, w, r)
	case path == "/metrics":
		m.metrics(w, r)
	case console.Serves(path):
		m.console.ServeHTTP(w, r)
	default:
		m.clients.ServeHTTP(w, r)
	}
}

// metrics serves the metrics of the machine. The caller needs a key with the role viewer, auditor
// or operator. If only the machine's user can reach the endpoint, programs on the machine need no
// key. A web page of another origin, or one that reaches loopback by another host name, is refused.
func (m *monitored) metrics(w http.ResponseWriter, r *http.Request) {
	o := m.machine.functions.Operators()
	if r.Header.Get("Authorization") == "" && m.machine.public.private() && transport.NamesLoopback(r.Host) {
		o.Caller = func(*http.Request, apikey.Right) (api.Caller, error) {
			return api.Machine("a program on this machine"), nil
		}
	}
	o.Meter = nil // AWS has no such route, so it is not billed
	r = r.Clone(r.Context())
	r.URL.Path = api.Prefix + "metrics"
	api.New(o).ServeHTTP(w, r)
}
