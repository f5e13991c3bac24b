package sessions

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Bounds of a session's record.
const (
	maxConns   = 8   // connections of a session; the oldest are forgotten
	maxCursors = 32  // event ids that a client may send when it connects
	maxPushed  = 256 // cursors in Session.Pushed, including those that a client sends
)

// Open returns the id of an HTTP+SSE client's session: the one that the client names, or for "" the one of
// a new session. For a new session the client must send initialize within [Limits.InitTimeout].
//
// Errors: those of [ReadSessionID], Unavailable.
func (h *Manager) Open(ctx context.Context, c Caller, named string) (storage.ID, error) {
	if named != "" {
		return ReadSessionID(named)
	}
	u, err := h.open(ctx, c)
	if err != nil {
		return "", err
	}
	return u.session.ID, nil
}

func (h *Manager) open(ctx context.Context, c Caller) (*use, error) {
	id, err := h.newID(ctx, c)
	if err != nil {
		return nil, err
	}
	u := &use{manager: h, caller: c, session: c.opened(id, h.limits)}
	if c.Conn != "" {
		u.session.Conns = []string{c.Conn}
	}
	return u, u.create(ctx)
}

func (u *use) create(ctx context.Context) error {
	if err := u.manager.store.Create(ctx, u.session); err != nil {
		return err
	}
	u.session.Rev = 1
	return nil
}

// newID returns the ID of a new session, and thereby chooses the session's box. Cost: one read
// if the caller's sessions may be in several boxes, otherwise none.
func (h *Manager) newID(ctx context.Context, c Caller) (storage.ID, error) {
	id := storage.NewID()
	if h.parts.Boxes == nil || !c.Server.Spreads {
		return id, nil
	}
	most := h.parts.Boxes(ctx, c.Tenant)
	if most < 2 {
		return id, nil
	}
	first, err := h.store.Box(ctx, c.box(id))
	return id.In(first.Choose(id, most)), err
}

// opened returns a new session of the caller, which nothing has stored yet.
func (c Caller) opened(id storage.ID, limits Limits) storage.Session {
	now := time.Now()
	s := storage.Session{
		ID: id, Server: c.Server.Name, Digest: c.Server.Digest, Tenant: c.Tenant, Principal: c.Principal,
		Transport: c.Transport, State: storage.Opened, Created: now, Used: now, Expires: now.Add(limits.InitTimeout),
	}
	if len(c.Props) <= storage.MaxProps {
		s.Props = c.Props
	}
	return s
}

// Connect adds a new WebSocket connection, c.Conn, to a session: to a new one in state Opened if
// sessionID is "", or to the session with this id. For a session with a group, Connect also adds the
// connection to the sessions behind it whose servers are in members.
//
// cursors has the ids of the last events that a resuming client says it has. Its keys are names of
// members, and "" for the session sessionID itself. A key has at most 32 ids, of different streams. A
// client with cursors has lost its other connections: Connect closes those, and the new connection must
// get the events after the cursors. owing lists the sessions that owe their client events
// ([storage.Session.Owes]). The transport must call [Manager.Push] for each of them when the connection
// is ready.
//
// Errors: NotFound (session), Invalid (cursors), Busy, Unavailable. After an error the
// caller must refuse the connection.
func (h *Manager) Connect(ctx context.Context, c Caller, members []Caller, sessionID storage.ID, cursors map[string][]storage.EventID) (s storage.Session, owing []storage.ID, err error) {
	if sessionID == "" {
		u, err := h.open(ctx, c)
		if err != nil {
			return s, nil, err
		}
		return u.session, nil, u.putConnection(ctx)
	}
	all, err := h.rejoined(ctx, c, members, sessionID, cursors)
	if err != nil {
		return storage.Session{}, nil, err
	}
	alone := slices.ContainsFunc(all, func(r rejoin) bool { return len(r.claims) > 0 }) // a client that sends cursors has no other connection
	// Put the connection's record before the session names the connection: the instance
	// that pushes reads that record.
	if err := all[0].putConnection(ctx); err != nil {
		return storage.Session{}, nil, err
	}
	// Close the other connections before the record changes: a connection that cannot be
	// closed must stay in the record.
	closed := map[string]bool{c.Conn: true}
	if alone {
		for _, r := range all {
			if err := h.out.closeAll(ctx, r.session.Conns, closed); err != nil {
				return storage.Session{}, nil, err
			}
		}
	}
	for i, r := range all {
		var others []string
		err = r.update(ctx, func(s *storage.Session) bool {
			others = join(s, c.Conn, r.claims, alone)
			if s.Group == "" { // a session of a group's member lives as long as the group's own session
				h.limits.extend(s)
			}
			return true
		})
		if err == nil {
			err = h.out.closeAll(ctx, others, closed)
		}
		if err != nil {
			return storage.Session{}, nil, err
		}
		if r.session.Owes() {
			owing = append(owing, r.session.ID)
		}
		if i == 0 {
			s = r.session
		}
	}
	return s, owing, nil
}

// rejoin is a session that gets a new connection. claims are the cursors that the client sent for the
// session.
type rejoin struct {
	*use
	claims []storage.Cursor
}

// rejoined returns the session with this id, followed by the client's sessions with members.
func (h *Manager) rejoined(ctx context.Context, c Caller, members []Caller, sessionID storage.ID, cursors map[string][]storage.EventID) (all []rejoin, err error) {
	add := func(c Caller, id storage.ID, cursors []storage.EventID) error {
		u, err := h.use(ctx, c, id)
		if err != nil {
			return err
		}
		claims, err := u.claimed(ctx, cursors)
		all = append(all, rejoin{u, claims})
		return err
	}
	if err := add(c, sessionID, cursors[""]); err != nil {
		return nil, err
	}
	for _, m := range members {
		name := m.Server.Name
		if !slices.Contains(all[0].session.Members, name) {
			continue
		}
		if err := add(m, MemberID(sessionID, name), cursors[name]); storage.IgnoreNotFound(err) != nil {
			return nil, err
		}
	}
	return all, nil
}

// closeAll closes the connections that are not in closed, and adds them to closed.
func (o Publisher) closeAll(ctx context.Context, conns []string, closed map[string]bool) error {
	for _, conn := range conns {
		if closed[conn] || o.Clients == nil {
			continue
		}
		if err := o.Clients.Close(ctx, conn); err != nil && !errors.Is(err, storage.Closed) {
			return err
		}
		closed[conn] = true
	}
	return nil
}

func (u *use) putConnection(ctx context.Context) error {
	c := u.caller
	return u.manager.store.PutConnection(ctx, storage.Connection{
		ID: c.Conn, Session: u.session.ID, Server: c.Server.Name, Tenant: c.Tenant, Principal: c.Principal,
		EventIDs: c.EventIDs, Credential: c.Credential, Scopes: c.Scopes, Scoped: c.Scoped, ToolRules: c.ToolRules, Group: c.Group, Expires: time.Now().Add(connectionLife),
	})
}

// claimed checks the event ids that a client sends when it connects, and returns them as cursors.
func (u *use) claimed(ctx context.Context, cursors []storage.EventID) ([]storage.Cursor, error) {
	if len(cursors) > maxCursors {
		return nil, storage.Errorf(storage.Invalid, "%d event ids at once; name at most %d", len(cursors), maxCursors)
	}
	if len(u.session.Pushed)+len(cursors) > maxPushed {
		return nil, storage.Errorf(storage.Busy, "the session has more than %d streams open; try again when some have ended", maxPushed-len(cursors)).
			Because(&storage.Limited{Kind: "concurrent", Scope: "principal", After: time.Second})
	}
	var claims []storage.Cursor
	for _, id := range cursors {
		if id.Stream != storage.Standalone && id.Stream.Time().IsZero() {
			return nil, storage.BadEventID("stream", id.String())
		}
		if slices.ContainsFunc(claims, func(c storage.Cursor) bool { return c.Stream == id.Stream }) {
			return nil, storage.Errorf(storage.Invalid, "two event ids of one stream; name the last one only")
		}
		tail, after, err := u.place(ctx, id)
		if err != nil {
			return nil, err
		}
		claims = append(claims, storage.Cursor{Stream: id.Stream, Index: after, Final: tail.Final && after >= tail.Last})
	}
	return claims, nil
}

// join adds a connection to s, and sets the cursors that the client names. If alone is true,
// join removes the other connections from s, and returns them.
func join(s *storage.Session, conn string, claims []storage.Cursor, alone bool) (lost []string) {
	others := without(s.Conns, conn)
	if !alone {
		if len(others) >= maxConns {
			others = others[len(others)-maxConns+1:]
		}
		s.Conns = append(others, conn)
		return nil
	}
	s.Pushed = slices.Clone(s.Pushed)
	for _, c := range claims {
		if old := cursorOf(s, c.Stream); old != nil {
			*old = c
		} else {
			owe(s, c)
		}
	}
	s.Conns, s.Pusher = []string{conn}, storage.Lease{}
	return others
}

// Connection returns the record of a connection, which names its session and caller.
// Errors: NotFound if there is none, Unavailable.
func (h *Manager) Connection(ctx context.Context, conn string) (storage.Connection, error) {
	c, err := h.store.Connection(ctx, conn)
	if errors.Is(err, storage.NotFound) {
		return storage.Connection{}, storage.Errorf(storage.NotFound, "this connection belongs to no session; connect anew")
	}
	return c, err
}

// Drop closes a connection whose client has lost the right to use it. It is no error if the
// connection is gone.
//
// Errors: Unavailable.
func (h *Manager) Drop(ctx context.Context, conn string) error {
	return h.out.closeAll(ctx, []string{conn}, map[string]bool{})
}

// Disconnect removes a closed connection from its session, which lives on. A session may keep closed
// connections, because API Gateway does not report all.
//
// Errors: Unavailable.
func (h *Manager) Disconnect(ctx context.Context, conn string) error {
	c, err := h.store.Connection(ctx, conn)
	if err != nil {
		return storage.IgnoreNotFound(err)
	}
	if err := disconnect(ctx, h.store, c.Session, conn); err != nil {
		return err
	}
	return h.store.DeleteConnection(ctx, conn)
}

// disconnect removes a connection from a session, and if that is a session with a group, from its
// sessions with members.
func disconnect(ctx context.Context, store storage.Sessions, id storage.ID, conn string) error {
	s, err := amend(ctx, store, id, func(s *storage.Session) bool {
		n := len(s.Conns)
		s.Conns = without(s.Conns, conn)
		return len(s.Conns) < n
	})
	if err := storage.IgnoreNotFound(err); err != nil {
		return err
	}
	for _, member := range s.Members {
		if err := disconnect(ctx, store, MemberID(id, member), conn); err != nil {
			return err
		}
	}
	return nil
}

// Tell sends a WebSocket client that wants event ids its first id. Tell makes one attempt.
func (h *Manager) Tell(ctx context.Context, c Caller, id storage.ID) {
	if c.EventIDs && h.parts.Clients != nil {
		_ = h.parts.Clients.Post(ctx, c.Conn, EventNotice(id, "", storage.EventID{}, nil)) // if the post is lost, the client gets an id with the next event
	}
}

// Push pushes to a session's client the stored events that it has not got yet, over its newest connection.
// Push waits for a connection that is not ready yet.
//
// Errors: Unavailable. After an error the caller should arrange another attempt.
func (h *Manager) Push(ctx context.Context, id storage.ID) error {
	p := h.out.redelivery()
	done := func(s *storage.Session) bool { return p.held || !s.Owes() }
	return p.run(ctx, id, func(*storage.Session) bool { return false }, done)
}
