package remote_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/backend/remote"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// guarded refuses requests without the token, as a server of MCP authorization does.
func guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer token" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// The client of a user without a token gets a tool, whose call tells the user where to
// connect. With a token it gets the server's own tools, in the same session.
func TestServerThatRefusesAUserOffersToConnect(t *testing.T) {
	for version, upstream := range upstreams() {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t, storagetest.NewMemory(), guarded(upstream))
			w.server.Headers, w.server.Providers = map[string]string{"Authorization": "Bearer ${principal:far}"}, []string{"far"}
			c := plain(w)
			tools, err := c.ListTools(t.Context(), nil)
			if err != nil || len(tools.Tools) != 1 || tools.Tools[0].Name != remote.ConnectTool {
				t.Errorf("without a token: %v, %v", tools, err)
			}
			if prompts, err := c.ListPrompts(t.Context(), nil); err != nil || len(prompts.Prompts) != 0 {
				t.Errorf("prompts without a token: %v, %v", prompts, err)
			}
			w.server.Headers, w.server.Providers = map[string]string{"Authorization": "Bearer token"}, nil
			if tools, err = c.ListTools(t.Context(), nil); err != nil || len(tools.Tools) != 3 {
				t.Errorf("with a token: %v, %v", tools, err)
			}
			w.server.Headers = map[string]string{"Authorization": "Bearer to\nken"}
			if _, err = c.ListTools(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "header Authorization has a line break") {
				t.Errorf("with a line break: %v", err)
			}
		})
	}
}
