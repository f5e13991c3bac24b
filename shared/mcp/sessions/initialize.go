package sessions

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Initialize opens a session (MCP 2025-11-25, basic/lifecycle). m must be an initialize request. id
// is "" for a new session, or the id of the session that the client's connection has opened.
//
// The Call has the answer at once if the handshake record has one for the version in m, or if the server
// is being prepared ([Server.Preparing]). Otherwise Initialize asks the box, and an error in the answer
// ends the session.
//
// Errors: Invalid (params, or initialized already), TooLarge (parameters over 64 KiB, an id
// over 16 KiB), NotFound (id), Unavailable, Busy.
func (h *Manager) Initialize(ctx context.Context, c Caller, id storage.ID, m wire.Message) (storage.Session, *Call, error) {
	version, err := initializable(m)
	if err != nil {
		return storage.Session{}, nil, err
	}
	fresh := id == ""
	if fresh {
		if id, err = h.newID(ctx, c); err != nil {
			return storage.Session{}, nil, err
		}
	}
	version = wire.Negotiate(version)
	result, err := h.greeted(ctx, c, id, version)
	if err != nil {
		return storage.Session{}, nil, err
	}
	if result == nil && c.Server.Preparing {
		result = provisional(c.Server.Name, version)
	}
	begin := func(s *storage.Session) {
		s.State, s.Version, s.Init = storage.Created, version, bytes.Clone(m.Params)
		s.Expires = time.Now().Add(h.limits.InitTimeout)
		if result != nil {
			adopt(s, result)
		} else {
			s.Expires = s.Expires.Add(startTime)
		}
	}
	u := &use{manager: h, caller: c}
	if err := u.begin(ctx, id, fresh, begin); err != nil {
		return storage.Session{}, nil, err
	}
	if result != nil {
		return u.session, h.readyCall(wire.ResultResponse(m.ID, result)), nil
	}
	if u.box, err = h.store.Box(ctx, c.box(id)); err != nil {
		return storage.Session{}, nil, err
	}
	call, err := u.deliver(ctx, Delivery{Raw: m.Raw, Address: storage.Address{Requests: []json.RawMessage{m.ID}, Init: true, Shown: greetingOf(c)}})
	if err != nil {
		return storage.Session{}, nil, err
	}
	return u.session, call, nil
}

// greeted returns the answer of the caller's server to initialize that the handshake record has, nil if it
// has none. id is that of the session, or "" for the record of box 0.
func (h *Manager) greeted(ctx context.Context, c Caller, id storage.ID, version string) (json.RawMessage, error) {
	if !c.Server.Record {
		return nil, nil
	}
	record, err := h.store.Handshake(ctx, storage.RecordIn(c.Tenant, c.Server.Digest, id), version)
	return offered(c.Server.Pin, record.Result), storage.IgnoreNotFound(err)
}

// initializable checks an initialize request, and returns the version that it asks for.
func initializable(m wire.Message) (version string, err error) {
	version, ok := wire.String(wire.Lookup(m.Params, "protocolVersion"))
	switch {
	case !ok:
		return "", storage.Errorf(storage.Invalid, "initialize has no params.protocolVersion; send the newest version you speak as a string")
	case len(m.Params) > maxInit:
		return "", storage.Errorf(storage.TooLarge, "the parameters of initialize have %d bytes; send at most %d", len(m.Params), maxInit)
	}
	return version, bounded(m)
}

// begin sets the fields of a session with the function fill, and stores the session: a new one if
// fresh is true, otherwise the one that the client's connection has opened. It changes nothing if the
// client repeats its initialize.
func (u *use) begin(ctx context.Context, id storage.ID, fresh bool, fill func(*storage.Session)) (err error) {
	if fresh {
		u.session = u.caller.opened(id, u.manager.limits)
		fill(&u.session)
		return u.create(ctx)
	}
	if u.session, _, err = u.manager.Load(ctx, u.caller, id); err != nil {
		return err
	}
	var wanted storage.Session
	fill(&wanted)
	initialized := false
	err = u.update(ctx, func(s *storage.Session) bool {
		again := s.State == storage.Created && bytes.Equal(s.Init, wanted.Init)
		if initialized = s.State != storage.Opened && !again; initialized || again {
			return false
		}
		s.Digest = u.caller.Server.Digest
		fill(s)
		return true
	})
	if err == nil && initialized {
		err = storage.Errorf(storage.Invalid, "this session is initialized already; open another connection for another session")
	}
	return err
}
