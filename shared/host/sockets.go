package host

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// connectionLife is how long a connection's record is kept: somewhat longer than
// API Gateway lets a connection live (2 h).
const connectionLife = 130 * time.Minute

// Bounds of a session's record.
const (
	maxConns   = 8
	maxCursors = 32  // named at one connect
	maxPushed  = 256 // entries, before a client may name no more
)

// Open makes a session that has not seen initialize yet: an SSE client's. It lives
// for Limits.InitTimeout until then.
//
// Errors: Unavailable.
func (h *Host) Open(ctx context.Context, c Caller) (session.Session, error) {
	s := h.opened(c)
	if err := h.store.Create(ctx, s); err != nil {
		return session.Session{}, err
	}
	s.Rev = 1
	return s, nil
}

func (h *core) opened(c Caller) session.Session {
	now := time.Now()
	s := session.Session{
		ID: session.NewID(), Server: c.Server.Name, Digest: c.Server.Digest, Tenant: c.Tenant, Principal: c.Principal,
		Transport: c.Transport, State: session.Opened, Created: now, Used: now, Expires: now.Add(h.limits.InitTimeout),
	}
	if len(c.Props) <= session.MaxProps {
		s.Props = c.Props
	}
	return s
}

// Connect takes a new WebSocket connection, c.Conn: into a new session in state
// Opened, or into the session that is to be resumed. cursors are what a client
// that resumes says it has, one for each stream at most: it then has lost its
// other connections, which are closed, and what is behind the cursors is owed to
// this one. If the session [session.Session.Owes] anything, somebody has to call
// [Sockets.Push] once the connection is up.
//
// Errors: NotFound (session), Invalid (cursors), Busy, Unavailable. After an error
// the connection must be refused.
func (h Sockets) Connect(ctx context.Context, c Caller, resume session.ID, cursors []session.EventID) (session.Session, error) {
	if resume == "" {
		s := h.opened(c)
		s.Conns = []string{c.Conn}
		if err := h.store.Create(ctx, s); err != nil {
			return session.Session{}, err
		}
		s.Rev = 1
		return s, h.putConnection(ctx, c, s.ID)
	}
	s, _, err := h.Load(ctx, c, resume)
	if err != nil {
		return session.Session{}, err
	}
	claims, err := h.claims(ctx, s, cursors)
	if err != nil {
		return session.Session{}, err
	}
	// Before it is in the session: who pushes reads the record of a connection.
	if err := h.putConnection(ctx, c, s.ID); err != nil {
		return session.Session{}, err
	}
	// The others are closed first: were the record changed and then the closing
	// failed, nobody would know of them any more.
	closed := map[string]bool{c.Conn: true}
	if len(claims) > 0 {
		if err := h.closeAll(ctx, s.Conns, closed); err != nil {
			return session.Session{}, err
		}
	}
	var others []string
	s, err = h.update(ctx, s, func(s *session.Session) bool {
		others = join(s, c.Conn, claims)
		h.extend(s)
		return true
	})
	if err != nil {
		return session.Session{}, err
	}
	return s, h.closeAll(ctx, others, closed)
}

// closeAll closes those connections that are not closed already. One that stayed
// open would take events that its client does not see.
func (h Sockets) closeAll(ctx context.Context, conns []string, closed map[string]bool) error {
	for _, conn := range conns {
		if closed[conn] || h.out.Clients == nil {
			continue
		}
		if err := h.out.Clients.Close(ctx, conn); err != nil && !errors.Is(err, session.Closed) {
			return err
		}
		closed[conn] = true
	}
	return nil
}

func (h Sockets) putConnection(ctx context.Context, c Caller, id session.ID) error {
	return h.store.PutConnection(ctx, session.Connection{
		ID: c.Conn, Session: id, Server: c.Server.Name, Tenant: c.Tenant, Principal: c.Principal,
		EventIDs: c.EventIDs, Credential: c.Credential, Expires: time.Now().Add(connectionLife),
	})
}

// claims are the entries for what a client says it has.
func (h Sockets) claims(ctx context.Context, s session.Session, cursors []session.EventID) ([]session.Cursor, error) {
	if len(cursors) > maxCursors {
		return nil, session.Errorf(session.Invalid, "%d event ids at once; name at most %d", len(cursors), maxCursors)
	}
	if len(s.Pushed)+len(cursors) > maxPushed {
		return nil, session.Errorf(session.Busy, "the session has more than %d streams open; try again when some have ended", maxPushed-len(cursors))
	}
	var claims []session.Cursor
	for _, id := range cursors {
		if id.Stream != session.Common && id.Stream.Time().IsZero() {
			return nil, &session.EventIDError{Part: "stream", ID: id.String()}
		}
		if slices.ContainsFunc(claims, func(c session.Cursor) bool { return c.Stream == id.Stream }) {
			return nil, session.Errorf(session.Invalid, "two event ids of one stream; name the last one only")
		}
		tail, err := h.store.Tail(ctx, s.ID, id.Stream)
		if err != nil {
			return nil, err
		}
		claims = append(claims, session.Cursor{Stream: id.Stream, Index: id.Index, Final: tail.Final && id.Index >= tail.Last})
	}
	return claims, nil
}

// join adds a connection, and takes over what its client says it has. It returns
// the connections that the client then has lost.
func join(s *session.Session, conn string, claims []session.Cursor) (lost []string) {
	others := without(s.Conns, conn)
	if len(claims) == 0 {
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
	s.Conns, s.Pusher = []string{conn}, session.Lease{}
	return others
}

// Connection is the record of a connection: whose messages come over it. NotFound
// if it belongs to no session.
func (h Sockets) Connection(ctx context.Context, conn string) (session.Connection, error) {
	c, err := h.store.Connection(ctx, conn)
	if errors.Is(err, session.NotFound) {
		return session.Connection{}, session.Errorf(session.NotFound, "this connection belongs to no session; connect anew")
	}
	return c, err
}

// Drop closes a connection whose client has lost its right to it. One that has gone
// is fine.
//
// Errors: Unavailable.
func (h Sockets) Drop(ctx context.Context, conn string) error {
	return h.closeAll(ctx, []string{conn}, map[string]bool{})
}

// Disconnect is told, if all goes well, that a connection has gone. The session
// lives on.
//
// Errors: Unavailable.
func (h Sockets) Disconnect(ctx context.Context, conn string) error {
	c, err := h.store.Connection(ctx, conn)
	if err != nil {
		return unlessGone(err)
	}
	s, _, err := h.store.Load(ctx, c.Session, "")
	if err == nil {
		_, err = h.update(ctx, s, func(s *session.Session) bool {
			n := len(s.Conns)
			s.Conns = without(s.Conns, conn)
			return len(s.Conns) < n
		})
	}
	if err := unlessGone(err); err != nil {
		return err
	}
	return h.store.DeleteConnection(ctx, conn)
}

// Tell tells a WebSocket client that asked for event ids where its session stands,
// if it can: at its beginning, before there is any event.
func (h Sockets) Tell(ctx context.Context, c Caller, id session.ID) {
	if c.EventIDs && h.out.Clients != nil {
		_ = h.out.Clients.Post(ctx, c.Conn, EventNotice(id, session.EventID{}, nil)) // the next event says more
	}
}

// Push pushes what a session is owed to its connections, and waits for one that
// is not up yet.
//
// Errors: Unavailable: nothing is lost, but somebody should try again.
func (h Sockets) Push(ctx context.Context, id session.ID) error { return h.out.push(ctx, id) }
