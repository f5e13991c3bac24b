package local

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestTheGateIsShutWhileASandboxHasANetwork(t *testing.T) {
	read := func(box, access string) *serversfile.File {
		c, _, err := serversfile.Parse([]byte(`{"mcpServers":{"free":{"command":"x"},"s":{"command":"x","x-dormouse":`+box+`}},"x-dormouse":{"access":`+access+`}}`), "servers.json", nil)
		commontest.OK(t, err)
		return c
	}
	status := func(g *gate, inBox bool) int {
		asked := false
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), inBoxKey{}, func() bool { asked = true; return inBox }), http.MethodGet, "/healthz", nil)
		w := httptest.NewRecorder()
		g.of(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })).ServeHTTP(w, r)
		if asked && !g.met.Load() {
			t.Error("it looks for a caller that it need not know")
		}
		return w.Code
	}
	for name, test := range map[string]struct {
		box, access string
		want        int // for a program in a box
	}{
		"nothing":       {`{}`, `{}`, 200},
		"network_basic": {`{"box":{"profile":"network_basic"}}`, `{}`, 403},
		"a limit":       {`{"box":{"memory_mb":64}}`, `{}`, 403},
		"no network":    {`{"box":{"profile":"default"}}`, `{}`, 200},
		"a build":       {`{"box":{"profile":"default","host_path":"/srv/x"}}`, `{}`, 403},
		"a sealed one":  {`{"box":{"sealed":true,"host_path":"/srv/x"}}`, `{}`, 403},
		"no build":      {`{"box":{"profile":"default","host_path":"/srv/x","host_path_mode":"rw"}}`, `{}`, 200},
		"switched off":  {`{"enabled":false,"box":{"profile":"network_basic"}}`, `{}`, 200},
		"allowed":       {`{"box":{"profile":"network_basic"}}`, `{"boxes":true}`, 200},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			g.take(read(test.box, test.access))
			commontest.EqualIn(t, name+": a program in a box", test.want, status(g, true))
			commontest.EqualIn(t, name+": another program", 200, status(g, false))
		})
	}
	// The process of a server that has left the file may still run.
	g := newGate()
	g.take(read(`{"box":{"profile":"network_basic"}}`, `{}`))
	g.take(read(`{}`, `{}`))
	commontest.EqualIn(t, "after its server has left the file, it gets", 403, status(g, true))
}
