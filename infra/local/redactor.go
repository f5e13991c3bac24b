package local

import (
	"strings"
	"sync/atomic"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/redact"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// redactor hides the secrets of all servers of the servers file, and the passwords of the machine's
// proxies. It is safe for concurrent use.
type redactor struct {
	environ environ
	servers func() *serversfile.File // returns the servers that clients can call now, or nil if the servers file was not read yet
	known   atomic.Pointer[hidden]
}

// hidden has the redactors of a servers file: one for the proxies, and one for each server.
type hidden struct {
	of   *serversfile.File
	each []*redact.Redactor
}

// hide removes the secrets of all servers from a text.
func (h *redactor) hide(text string) string {
	servers := h.servers()
	if servers == nil {
		return text
	}
	k := h.known.Load()
	if k == nil || k.of != servers {
		proxies := redact.New(nil, nil)
		for _, kv := range h.environ {
			if name, value, _ := strings.Cut(kv, "="); provision.IsProxy(name) {
				proxies.HideProxy(value)
			}
		}
		k = &hidden{of: servers, each: []*redact.Redactor{proxies}}
		for _, name := range servers.Names() {
			s, _ := servers.Server(name)
			k.each = append(k.each, redact.New(s.Env, s.Box.Secrets))
		}
		h.known.Store(k)
	}
	for _, r := range k.each {
		text = r.Text(text)
	}
	return text
}
