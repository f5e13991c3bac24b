package front

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Streamable HTTP with sessions is MCP 2025-03-26 to 2025-11-25: POST (post.go), GET (get.go)
// and DELETE. Every POST comes to it first, and it passes those of the modern era on.

// end ends a session (MCP 2025-11-25, basic/transports, "Session Management").
func end(x *exchange) error {
	if isModern(x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return notAllowed(methodsModern, "this protocol version has no session to end; use POST")
	}
	if err := checkVersion(x); err != nil {
		return err
	}
	if err := x.sessionID(); err != nil {
		return err
	}
	if err := x.at(session.HTTP).End(x.ctx(), x.session); err != nil {
		return err
	}
	x.empty(http.StatusNoContent)
	return nil
}

// checkMessages does those checks of the ladder in validate.go that need the messages.
func checkMessages(x *exchange, msgs []wire.Message, batch bool) (initialize bool, err error) {
	initialize = slices.ContainsFunc(msgs, isInitialize)
	version := x.r.Header.Get(wire.HeaderProtocolVersion)
	switch {
	case initialize && batch:
		return false, initializeInBatch()
	case initialize:
		return true, checkNoSession(x)
	}
	if err := checkVersion(x); err != nil {
		return false, err
	}
	if batch && version != "" && version != wire.V20250326 {
		return false, session.Errorf(session.Invalid, "version %s has no batches; send each message in a request of its own", version)
	}
	return false, nil
}

// checkNoSession refuses an initialize with the id of a session of the caller. Some clients
// keep the id of a session that is gone, so such an id does not count.
func checkNoSession(x *exchange) error {
	id := x.r.Header.Get(wire.HeaderSessionID)
	if id == "" {
		return nil
	}
	err := x.named(id)
	if err == nil {
		_, _, err = x.opts.Host.Load(x.ctx(), x.caller, x.session)
	}
	switch x.session = ""; {
	case errors.Is(err, session.NotFound):
		return nil
	case err != nil:
		return err
	}
	return session.Errorf(session.Invalid, "initialize opens a session and must not name one; send it without %s", wire.HeaderSessionID)
}

// checkVersion checks the version header. A request without it counts as 2025-03-26.
func checkVersion(x *exchange) error {
	version := x.r.Header.Get(wire.HeaderProtocolVersion)
	switch {
	case version == "" || wire.Legacy(version):
		return nil
	case isNewer(version):
		return unsupported(version, bridge.Versions())
	}
	return refusal(http.StatusBadRequest, session.Invalid, wire.CodeServer,
		fmt.Sprintf("%s %q is not supported; send one of %s", wire.HeaderProtocolVersion, wire.Clip(version), strings.Join(wire.LegacyVersions(), ", ")))
}

// sessionID reads the session header.
func (x *exchange) sessionID() error {
	id := x.r.Header.Get(wire.HeaderSessionID)
	if id == "" {
		return refusal(http.StatusBadRequest, session.Invalid, wire.CodeServer, "the request names no session; send initialize, then "+wire.HeaderSessionID+" on every request")
	}
	return x.named(id)
}
