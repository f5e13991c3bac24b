package front

import (
	"net/http"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// extended serves what only an extension can explain, for a message of the modern era.
type extended struct{ x *exchange }

// asks reports whether a request is for the server although MCP has no such method. Then an
// extension of the server may know the method; if none does, the server says so.
func (e extended) asks(msg wire.Message) bool {
	return wire.OfExtension(msg.Method) && !e.ofGroup()
}

// ofGroup reports whether the message is for a group of servers, and for none of them.
func (e extended) ofGroup() bool {
	return e.x.one != nil && e.x.caller.Server.Name == e.x.one.caller.Server.Name
}

// ofKind makes the caller one with a client of this kind, at each server that the message
// may reach.
func (e extended) ofKind(kind string) {
	e.x.caller.Kind = kind
	e.x.session = host.PinnedID(e.x.caller)
	if e.x.one != nil {
		for i := range e.x.one.members {
			e.x.one.members[i].Kind = kind
		}
	}
}

// notified passes on a notification of an extension. It drops the others, which mean nothing
// in the modern era. At a group each server that is in use gets it, because nothing says which
// one it is for.
func (e extended) notified(msg wire.Message) error {
	if wire.OfExtension(msg.Method) {
		if err := checkHeaders(e.x.r.Header, msg); err != nil {
			return err
		}
		if version := e.x.r.Header.Get(wire.HeaderProtocolVersion); version != wire.V20260728 {
			return unsupported(version, bridge.Versions())
		}
		of := bridge.Request{Message: msg, Capabilities: wire.Lookup(msg.Params, "_meta", wire.MetaClientCapabilities)}
		e.ofKind(of.Kind())
		to := []host.Caller{e.x.caller}
		if e.ofGroup() {
			to = slices.Clone(e.x.one.members)
		}
		for _, c := range to {
			c.Transport = session.Modern
			if err := e.x.opts.Host.Notify(e.x.ctx(), c, msg); err != nil {
				return err
			}
		}
	}
	e.x.empty(http.StatusAccepted)
	return nil
}
