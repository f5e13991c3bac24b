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

// streamable serves a request of Streamable HTTP with sessions, MCP 2025-03-26 to
// 2025-11-25: POST (post.go), GET (get.go) and DELETE. Every POST comes to it first, and
// it passes those of the modern era on.
type streamable struct{ x *exchange }

// delete ends a session (MCP 2025-11-25, basic/transports, "Session Management").
func (s streamable) delete() error {
	if isModern(s.x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return notAllowed(methodsModern, "this protocol version has no session to end; use POST")
	}
	if err := s.checkVersion(); err != nil {
		return err
	}
	if err := s.sessionID(); err != nil {
		return err
	}
	if err := s.x.opts.Host.End(s.x.ctx(), s.x.caller, s.x.session); err != nil {
		return err
	}
	s.x.empty(http.StatusNoContent)
	return nil
}

// checkMessages does those checks of the ladder in validate.go that need the messages.
func (s streamable) checkMessages(msgs []wire.Message, batch bool) (initialize bool, err error) {
	initialize = slices.ContainsFunc(msgs, isInitialize)
	version := s.x.r.Header.Get(wire.HeaderProtocolVersion)
	switch {
	case initialize && batch:
		return false, initializeInBatch()
	case initialize:
		return true, s.checkNoSession()
	}
	if err := s.checkVersion(); err != nil {
		return false, err
	}
	if batch && version != "" && version != wire.V20250326 {
		return false, session.Errorf(session.Invalid, "version %s has no batches; send each message in a request of its own", version)
	}
	return false, nil
}

// checkNoSession refuses an initialize with the id of a session of the caller. Some clients
// keep the id of a session that is gone, so such an id does not count.
func (s streamable) checkNoSession() error {
	id := s.x.r.Header.Get(wire.HeaderSessionID)
	if id == "" {
		return nil
	}
	err := s.x.named(id)
	if err == nil {
		_, _, err = s.x.opts.Host.Load(s.x.ctx(), s.x.caller, s.x.session)
	}
	switch s.x.session = ""; {
	case errors.Is(err, session.NotFound):
		return nil
	case err != nil:
		return err
	}
	return session.Errorf(session.Invalid, "initialize opens a session and must not name one; send it without %s", wire.HeaderSessionID)
}

// checkVersion checks the version header. A request without it counts as 2025-03-26.
func (s streamable) checkVersion() error {
	version := s.x.r.Header.Get(wire.HeaderProtocolVersion)
	switch {
	case version == "" || wire.Legacy(version):
		return nil
	case isNewer(version):
		return unsupported(version, bridge.Versions())
	}
	return refusal(http.StatusBadRequest, session.Invalid, wire.CodeServer,
		fmt.Sprintf("%s %q is not supported; send one of %s", wire.HeaderProtocolVersion, clip(version), strings.Join(wire.LegacyVersions(), ", ")))
}

// sessionID reads the session header.
func (s streamable) sessionID() error {
	id := s.x.r.Header.Get(wire.HeaderSessionID)
	if id == "" {
		return refusal(http.StatusBadRequest, session.Invalid, wire.CodeServer, "the request names no session; send initialize, then "+wire.HeaderSessionID+" on every request")
	}
	return s.x.named(id)
}
