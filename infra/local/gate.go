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

// gate keeps programs of boxes away from the endpoints for clients. Behind these are all
// other servers, and one without a sandbox would do what the caller's own sandbox forbids.
//
// It is shut while the machine has a server that a sandbox confines and leaves the network,
// unless the file lets boxes call. Once it had such a server, its processes may still run,
// so the gate stays shut for as long as the file does not open it.
type gate struct {
	met  atomic.Bool           // the machine has, or had, a server that a sandbox confines and that may use the network
	open atomic.Bool           // the file lets boxes call
	own  func(uid uint32) bool // reports whether the sandbox gives a user id to servers
}

func newGate() *gate { return &gate{own: sandbox.Probe().Owns} }

// take notes what the servers of a file need. Call it before one of them can start.
func (g *gate) take(servers *serversfile.File) {
	for _, name := range servers.Names() {
		s, _ := servers.Server(name)
		if b := s.Box; !s.Disabled && !s.InPlace() && (b.Confined() && !b.Offline || b.InstallScripts) {
			g.met.Store(true)
		}
	}
	g.open.Store(servers.BoxesMayCall())
}

// inBoxKey is the context key of a function that reports whether the caller of a connection
// is in a box.
type inBoxKey struct{}

// note implements http.Server.ConnContext. The answer costs up to some ten milliseconds, so
// it is found at the first request that needs it, and once for a connection.
func (g *gate) note(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, inBoxKey{}, sync.OnceValue(func() bool { return peer.StartedHere(c, g.own) }))
}

// of returns a handler that refuses programs in boxes while the gate is shut.
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
const inBoxRefused = `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"a program that dormouse run has started may not call it while a server is confined to a sandbox with a network: set x-dormouse.access.boxes to true in the servers file to allow it"}}` + "\n"
