package transport

import (
	"net/http"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// serveModern does the checks of the modern era and serves what was posted. Its checks
// come after the JSON-RPC checks in the list of checks (the ladder) in validate.go:
//
//	batch, response               400 -32600  serveModern
//	notification                  202         (one of an extension goes to the server, or to each member of a group)
//	header missing or different   400 -32020  checkHeaders; those of arguments last, bridge.CheckParams
//	version                       400 -32022
//	method                        404 -32601
//	_meta                         400 -32602  bridge.ReadRequest
//	client capability             400 -32021  bridge.Turn
//	any error of the server       by statusOf
func serveModern(x *exchange, msgs []wire.Message, batch bool) error {
	endpoint, msg := x.at(storage.Modern), msgs[0]
	kind := bridge.Request{Message: msg, Capabilities: wire.Lookup(msg.Params, "_meta", wire.MetaClientCapabilities)}.Kind()
	x.caller = endpoint.Caller()
	x.caller.Kind = kind
	x.session = sessions.PinnedID(x.caller)
	ours := msg.Method == wire.MethodDiscover || msg.Method == wire.MethodListen
	var to []sessions.Dispatched
	var refused error // the error of Dispatch, which is sent only if all checks pass
	switch {
	case batch:
		return storage.Errorf(storage.Invalid, "version %s has no batches; send each message in a request of its own", wire.V20260728)
	case msg.Kind == wire.Response:
		return storage.Errorf(storage.Invalid, "version %s has no responses of clients; answers go into params of the request that is sent again", wire.V20260728)
	case msg.Kind == wire.Notification && !wire.OfExtension(msg.Method):
		x.empty(http.StatusAccepted)
		return nil
	case msg.Kind == wire.Request && !ours:
		if to, refused = endpoint.Dispatch(x.ctx(), kind, msg); refused == nil {
			if to[0].Caller.Server.Name != x.caller.Server.Name {
				x.called.asks([]wire.Message{to[0].Message}) // in a group, this message names the tool without the prefix of its server
			}
			x.caller, x.session, x.msgs = to[0].Caller, sessions.PinnedID(to[0].Caller), []wire.Message{to[0].Message}
			if err := x.permit(x.msgs); err != nil {
				return err
			}
		}
	}
	if err := checkHeaders(x.r.Header, msg); err != nil {
		return err
	}
	if version := x.r.Header.Get(wire.HeaderProtocolVersion); version != wire.V20260728 {
		return unsupported(version, bridge.Versions())
	}
	if msg.Kind == wire.Notification {
		to, err := endpoint.Dispatch(x.ctx(), kind, msg)
		for _, d := range to {
			if err == nil {
				err = x.opts.Host.Notify(x.ctx(), d.Caller, d.Message)
			}
		}
		if err == nil {
			x.empty(http.StatusAccepted)
		}
		return err
	}
	// This check comes before the check of _meta, because clients send methods of the legacy era without
	// _meta: go-sdk's ping and logging/setLevel. A method that MCP does not have may be one of an
	// extension, so the server decides.
	served := ours || bridge.Offered(msg.Method) || wire.OfExtension(msg.Method) || x.servesTasks(x.caller) && bridge.IsTaskMethod(msg.Method)
	if !served {
		return refusal(http.StatusNotFound, storage.Invalid, wire.CodeMethodNotFound, "this method is not served in version "+wire.V20260728)
	}
	req, err := bridge.ReadRequest(msg)
	if err != nil {
		return err
	}
	x.called.client, _ = wire.String(wire.Lookup(req.Client, "name"))
	m := newModern(x, x.ctx(), req, sessions.Dispatched{Caller: x.caller, Message: msg})
	switch {
	case refused != nil:
		return newReply(m).fail(refused)
	case msg.Method == wire.MethodDiscover:
		return m.discover(endpoint, kind)
	case msg.Method == wire.MethodListen:
		return m.listen(endpoint, kind)
	}
	m = newModern(x, x.ctx(), req, to[0])
	switch {
	case m.to.Result != nil:
		out := newReply(m)
		result, err := m.to.Result(x.ctx(), m.client())
		if err != nil {
			return out.fail(err)
		}
		raw := wire.ResultResponse(req.ID, result)
		x.called.ends(raw, x.opts.ShowErrors)
		out.finish(raw, 0)
		return nil
	case bridge.IsTaskMethod(msg.Method):
		return m.task()
	default:
		return m.call()
	}
}
