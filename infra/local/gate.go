package local

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/dormouse-mcp/dormouse/infra/local/peer"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// gate keeps the programs in boxes away from the client endpoints. Without the gate, a program in a
// sandbox could call a server that has no sandbox, and that server would do what the sandbox
// forbids.
//
// The gate is shut once the servers file has a server with network access in a sandbox, or whose
// install has it. It stays shut when that server leaves the file, because its processes may still
// run. While the file lets boxes call (x-dormouse.access.boxes), the gate is open.
type gate struct {
	met  atomic.Bool           // the servers file has, or had, a server that shuts the gate
	open atomic.Bool           // the servers file lets boxes call
	own  func(uid uint32) bool // reports whether a user id is one that sandboxes give to servers
}

func newGate() *gate { return &gate{own: sandbox.Probe().Owns} }

// take opens or shuts the gate for the servers of a file. Call it before one of them can start.
func (g *gate) take(servers *serversfile.File) {
	for _, name := range servers.Names() {
		s, _ := servers.Server(name)
		b := s.Box
		// A Python project in host_path is built with network access, even for a server without it.
		builds := (b.Confined() || b.Sealed) && b.HostPath != "" && !b.HostPathWritable
		if !s.Disabled && !s.InPlace() && (b.Confined() && !b.Offline || b.InstallScripts || builds) {
			g.met.Store(true)
		}
	}
	g.open.Store(servers.BoxesMayCall())
}

// inBoxKey is the context key of a func() bool that reports whether the client of a connection is
// a program in a box.
type inBoxKey struct{}

// note implements http.Server.ConnContext. Whether the client is in a box is found out only when a
// request needs it, and once for a connection, because that can take ten milliseconds.
func (g *gate) note(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, inBoxKey{}, sync.OnceValue(func() bool { return peer.StartedHere(c, g.own) }))
}

// of returns a handler that refuses programs in boxes while the gate is shut. It passes other
// requests to h.
func (g *gate) of(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if inBox, ok := r.Context().Value(inBoxKey{}).(func() bool); ok && g.met.Load() && !g.open.Load() && inBox() {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(inBoxRefused)) // the caller may be gone
			return
		}
		h.ServeHTTP(w, r)
	})
}

// inBoxRefused is a JSON-RPC error, because most callers are MCP clients.
const inBoxRefused = `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"a program that dormouse run has started may not call it while a server in a sandbox, or its installation, has a network: set x-dormouse.access.boxes to true in the servers file to allow it"}}` + "\n"
