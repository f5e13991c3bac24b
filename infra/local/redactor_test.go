package local

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestPasswordsOfServersAndOfProxiesAreHidden(t *testing.T) {
	servers, _, err := serversfile.Parse([]byte(`{"mcpServers": {"x": {"command": "x", "env": {"KEY": "swordfish"}}}}`), "servers.json", nil)
	commontest.OK(t, err)
	h := &redactor{environ: environ{"PATH=/bin", "https_proxy=http://ada:hunter22@proxy.example:3128"}, servers: func() *serversfile.File { return servers }}
	commontest.Equal(t, "proxy.example refuses ***, and *** in /bin", h.hide("proxy.example refuses hunter22, and swordfish in /bin"))
}
