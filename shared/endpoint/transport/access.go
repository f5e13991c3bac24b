package transport

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// whole refuses an identity without a tenant or a principal: all callers with such an
// identity would share sessions and boxes.
func whole(who storage.Identity, err error) (storage.Identity, error) {
	if err == nil && (who.Tenant == "" || who.Principal == "") {
		return storage.Identity{}, storage.Errorf(storage.Internal, "the authenticator has let in somebody without a tenant or a principal")
	}
	return who, err
}

func (o *Options) caller(who storage.Identity, server sessions.Server, over storage.Transport) sessions.Caller {
	c := sessions.Caller{Identity: who, Server: server, Transport: over, Tools: server.Tools}
	if o.SignIn != nil {
		if may := o.SignIn.Tools(who, server.Name); c.Tools.IsZero() {
			c.Tools = may
		} else if !may.IsZero() {
			c.Tools.And = &may
		}
	}
	return c
}

// permit checks that the caller may call every tool that the messages call. If the caller's token
// lacks scopes, the data of the error has them, for clients that see no HTTP status. Call permit
// before anything is written and before a box wakes.
func (o *Options) permit(c sessions.Caller, address string, msgs []wire.Message) error {
	if (o.SignIn == nil || !c.Scoped) && c.Server.Tools.IsZero() {
		return nil
	}
	var tools []string
	for _, m := range msgs {
		if m.Method == wire.MethodToolsCall {
			name, _ := wire.String(wire.Lookup(m.Params, "name")) // a call that names no tool needs no scope
			if !c.Server.Tools.Allows(name) {
				return notOffered(c.Server.Name, name)
			}
			tools = append(tools, name)
		}
	}
	if len(tools) == 0 || o.SignIn == nil || !c.Scoped {
		return nil
	}
	err := o.SignIn.Permit(c.Identity, c.Server.Name, tools)
	if storage.CodeOf(err) != storage.Forbidden {
		return err
	}
	p := refusal(http.StatusForbidden, storage.Forbidden, codeForbidden, problemOf(err).rpc.Message)
	p.cause = err
	var lacks interface{ Wanted() []string }
	if errors.As(err, &lacks) {
		p.rpc.Data = map[string]string{
			"error": "insufficient_scope", "scope": strings.Join(lacks.Wanted(), " "), "resource_metadata": o.SignIn.MetadataURL(address),
		}
	}
	return p
}

// notOffered refuses a call of a tool that x-dormouse.tools leaves out. The refusal has the
// status 200: clients show an HTTP error to their users, and not to the model.
func notOffered(server, tool string) error {
	return refusal(http.StatusOK, storage.Invalid, wire.CodeInvalidParams,
		fmt.Sprintf("server %q offers no tool %q here: x-dormouse.tools in the servers file leaves it out", server, wire.Clip(tool)))
}

func refusedAll(msgs []wire.Message, err *wire.Error) (answers [][]byte) {
	for _, m := range msgs {
		if m.Kind == wire.Request {
			answers = append(answers, wire.ErrorResponse(m.ID, err))
		}
	}
	return answers
}

// refused returns an answer to each request in msgs, if err says that a limit or a lacking right refuses
// them, or is the endpoint's answer to a single request. Otherwise it returns nil. It is for HTTP+SSE
// and WebSocket, where an HTTP status would end the session of some clients.
func (c *called) refused(msgs []wire.Message, batch bool, err error) (answers [][]byte) {
	p, ours := errors.AsType[*problem](err)
	rpc := answerOf(err)
	switch {
	case ours && (p.rpc.Code == codeForbidden || p.status == http.StatusOK):
		return refusedAll(msgs, p.rpc)
	case storage.CodeOf(err) == storage.Busy:
		return busyAll(msgs, err, false)
	case !batch && rpc != nil:
		c.answered(rpc)
		return refusedAll(msgs, rpc)
	}
	return nil
}

// codeForbidden is the JSON-RPC code for a call that the caller's token does not permit.
// MCP 2026-07-28 wants codes of applications outside the range of JSON-RPC.
const codeForbidden = 403
