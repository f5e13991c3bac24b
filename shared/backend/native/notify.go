package native

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Notify sends the client of this session a notification that belongs to no request. The client
// gets it now, or when it next listens, if the event is still kept. A modern client gets only the
// kinds that it listens to, and only while it listens. params is any value that encodes as a JSON
// object, or nil.
//
// Errors: storage.TooLarge, storage.Unavailable; one of encoding/json for params that are
// not JSON.
func (s Session) Notify(ctx context.Context, method string, params any) error {
	raw, err := notification(method, params)
	if err != nil {
		return err
	}
	return s.in.k.tell(ctx, s.in.record, raw)
}

// ResourceUpdated announces that a resource has changed. It notifies the sessions of the
// tenant with this server that have subscribed to the resource (MCP 2025-11-25,
// server/resources; 2026-07-28, subscriptions/listen). It costs two reads for the
// resource, and two reads and a write for each session. It goes on after a session that
// fails.
//
// Errors: storage.Unavailable.
func (s Session) ResourceUpdated(ctx context.Context, uri string) error {
	raw, err := notification(wire.NotifyResourceUpdated, map[string]string{"uri": uri})
	if err != nil {
		return err
	}
	k := s.in.k
	records, err := newSubscribers(k.Store, s.in.record, uri).records(ctx)
	return errors.Join(err, k.tellAll(ctx, records, raw))
}

// List is one of a server's lists. Its value is the method of the notification that announces
// changes.
type List string

// The lists whose changes a server can announce.
const (
	Tools     List = wire.NotifyToolsChanged
	Prompts   List = wire.NotifyPromptsChanged
	Resources List = wire.NotifyResourcesChanged
)

// maxTold is how many sessions ListChanged notifies at most. It looks for them in the first
// maxLooked of the tenant's sessions.
const (
	maxTold   = 1000
	maxLooked = 5000
)

// ListChanged is [Backend.ListChanged] for the tenant and the server of this session.
func (s Session) ListChanged(ctx context.Context, list List) error {
	return s.in.k.ListChanged(ctx, s.in.record.Tenant, s.in.record.Server, list)
}

// ListChanged announces that a list has changed. It notifies sessions of a tenant with a
// server, native or remote: the first 1,000, among the first 5,000 sessions that the tenant
// has with any server. ListChanged costs a read for each of the 5,000, and two reads and two
// writes for each session that it notifies. It goes on after a session that fails.
//
// Errors: storage.Unavailable.
func (k *Backend) ListChanged(ctx context.Context, tenant, server string, list List) error {
	raw, err := notification(string(list), nil)
	if err != nil {
		return err
	}
	var told []storage.Session
	looked := 0
	for s, err := range storage.AllSessions(ctx, k.Store, tenant, "") {
		if err != nil {
			return err
		}
		if s.Server == server && s.State == storage.Ready {
			told = append(told, s)
		}
		if looked++; looked == maxLooked || len(told) == maxTold {
			break
		}
	}
	return k.tellAll(ctx, told, raw)
}

func notification(method string, params any) ([]byte, error) {
	var raw json.RawMessage
	if params != nil {
		var err error
		if raw, err = json.Marshal(params); err != nil {
			return nil, err
		}
	}
	return wire.NewNotification(method, raw), nil
}

// tellers is how many sessions are notified, or read, at the same time.
const tellers = 8

// each calls the function do for 0 to n-1, for some of them at the same time. It returns all errors joined.
func each(n int, do func(i int) error) error {
	errs := make([]error, n)
	var work errgroup.Group
	work.SetLimit(tellers)
	for i := range n {
		work.Go(func() error {
			errs[i] = do(i)
			return nil // an error would not stop the others
		})
	}
	_ = work.Wait() // always nil
	return errors.Join(errs...)
}

// The same notification goes to each of the sessions. A failure for one does not stop the others.
func (k *Backend) tellAll(ctx context.Context, sessions []storage.Session, raw []byte) error {
	return each(len(sessions), func(i int) error { return k.tell(ctx, sessions[i], raw) })
}

// tell appends a notification to the standalone stream of a session, and tries again if another
// instance was first. Each batch has a random Seq, so that the same notification from two instances
// does not count as a repeat.
func (k *Backend) tell(ctx context.Context, s storage.Session, raw []byte) error {
	a, open, err := k.commonOf(ctx, s)
	if err != nil || !open {
		return err
	}
	b := storage.Batch{
		Session: s.ID, Stream: storage.Standalone, Seq: 1 + rand.Int64N(1<<53), Events: [][]byte{raw}, Expires: time.Now().Add(k.EventAge),
	}
	return amongOthers(ctx, func() error {
		tail, err := k.Store.Tail(ctx, s.ID, storage.Standalone)
		if err != nil {
			return err
		}
		b.First = tail.Last + 1
		if a.Conn == noConnection {
			return k.out.End(ctx, a, b)
		}
		return k.out.Append(ctx, a, b)
	})
}

// noConnection is the Conn of an address whose WebSocket client is not connected.
const noConnection = "-"

// commonOf returns the address of a session's standalone stream. open is false for a session
// that has ended.
func (k *Backend) commonOf(ctx context.Context, s storage.Session) (a storage.Address, open bool, err error) {
	a = storage.Address{
		Session: s.ID, Digest: s.Record(), Box: s.Box(),
		LegacySSE: s.Transport == storage.SSE,
	}
	if s.Transport != storage.WebSocket {
		return a, true, nil
	}
	now, _, err := k.Store.Load(ctx, s.ID, "") // the client may have another connection by now
	if errors.Is(err, storage.NotFound) || err == nil && now.State == storage.Ended {
		return a, false, nil
	}
	if err != nil {
		return a, false, err
	}
	a.Conn = noConnection
	if len(now.Conns) == 0 {
		return a, true, nil
	}
	conn, err := k.Store.Connection(ctx, now.Conns[len(now.Conns)-1])
	if err == nil {
		a.Conn, a.EventIDs, a.Through = conn.ID, conn.EventIDs, s.Through(conn.Group)
	}
	if errors.Is(err, storage.NotFound) {
		err = nil
	}
	return a, true, err
}
