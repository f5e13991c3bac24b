package transport

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// mostNamed is how many servers an error names.
const mostNamed = 20

// unknown returns the text of the 404 for a server that is not there. The text names the servers that
// the caller may use. If there are none, unknown returns fallback.
func (o *Options) unknown(r *http.Request, name, fallback string) string {
	names := o.usable(r)
	if len(names) == 0 {
		return fallback
	}
	more := ""
	if n := len(names) - mostNamed; n > 0 {
		names, more = names[:mostNamed], fmt.Sprintf(" and %d more", n)
	}
	return "there is no server " + wire.Clip(name) + "; there are " + strings.Join(names, ", ") + more
}

// usable returns the names of the servers that the sender of a request may use, in the order
// of the servers file.
func (o *Options) usable(r *http.Request) []string {
	_, names := o.served(nil)
	if len(names) == 0 {
		return nil
	}
	may, err := o.Auth.Members(r, "", names)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(names, func(name string) bool { return may[name].Principal == "" })
}

// server returns the server that is served under a name. It does not check whether the caller may
// use it. If the servers file has the server but it is not served, the error gives the reason. If the
// server was removed from the file, the error says so. For any other name, the error lists the servers
// that the sender of r may use. If there are none, or r is nil, its text is fallback.
func (o *Options) server(r *http.Request, name, fallback string) (sessions.Server, error) {
	server, ok := o.Servers(name)
	if ok {
		return server, nil
	}
	if o.Unserved != nil {
		if reason := o.Unserved(name); reason != "" {
			p := refusal(http.StatusServiceUnavailable, storage.Unavailable, wire.CodeServer, fmt.Sprintf("server %q is not served: %s", name, reason))
			p.lasts = true
			return sessions.Server{}, p
		}
	}
	removed := ""
	if o.Removed != nil {
		removed = o.Removed(name)
	}
	if removed == "" && r != nil {
		fallback = o.unknown(r, name, fallback)
	}
	return sessions.Server{}, refusal(http.StatusNotFound, storage.NotFound, wire.CodeServer, cmp.Or(removed, fallback))
}
