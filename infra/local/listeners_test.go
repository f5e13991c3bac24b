package local

import (
	"net"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestPortThatIsInUseIsSaid(t *testing.T) {
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	commontest.OK(t, err)
	defer func() { _ = taken.Close() }()
	address := taken.Addr().String()
	l := &listeners{Listen: address, Sockets: "127.0.0.1:0"}
	err = l.start(t.Context())
	l.close()
	if want := address + " is used by another program: stop that one, or take a free port with --listen 127.0.0.1:0: "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Error(err)
	}
}
