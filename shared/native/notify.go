package native

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Notify tells the client of this session something that belongs to no request, now
// or when it listens next: it stands in the log for as long as events are kept. A
// modern client hears of what it listens to, and only while it does. params is
// anything that JSON holds as an object, or nil.
//
// Errors: session.TooLarge, session.Unavailable; one of encoding/json for params
// that are not JSON.
func (s Session) Notify(ctx context.Context, method string, params any) error {
	raw, err := notification(method, params)
	if err != nil {
		return err
	}
	return s.in.k.tell(ctx, s.in.record, raw)
}

// ResourceUpdated tells those sessions of the tenant with this server that have
// subscribed to a resource that it has changed (MCP 2025-11-25, server/resources;
// 2026-07-28, subscriptions/listen). It costs two reads for the resource, and for
// each session two reads and a write. It goes on after a session that fails.
//
// Errors: session.Unavailable.
func (s Session) ResourceUpdated(ctx context.Context, uri string) error {
	raw, err := notification(wire.NotifyResourceUpdated, map[string]string{"uri": uri})
	if err != nil {
		return err
	}
	return s.in.k.tellSubscribers(ctx, s.in.record, uri, raw)
}

// List is something that a server lists.
type List string

// The lists there are.
const (
	Tools     List = wire.NotifyToolsChanged
	Prompts   List = wire.NotifyPromptsChanged
	Resources List = wire.NotifyResourcesChanged
)

// maxTold is how many sessions are told that a list has changed, of as many of their
// tenant as are looked at in ten pages.
const (
	maxTold   = 1000
	listPage  = 500
	listPages = 10
)

// ListChanged tells the sessions of the tenant with this server that a list has
// changed: the first 1,000, among the first 5,000 sessions that the tenant has with
// any server. It costs a read for each of those and, for each session that is told,
// two reads and two writes. It goes on after a session that fails.
//
// Errors: session.Unavailable.
func (s Session) ListChanged(ctx context.Context, list List) error {
	own := s.in.record
	raw, err := notification(string(list), nil)
	if err != nil {
		return err
	}
	var told []session.Session
	after := session.ID("")
	for range listPages {
		page, err := s.in.k.Store.List(ctx, own.Tenant, after, listPage)
		if err != nil {
			return err
		}
		for _, x := range page {
			if x.Server == own.Server && x.State == session.Ready {
				told = append(told, x)
			}
		}
		if len(page) < listPage || len(told) >= maxTold {
			break
		}
		after = page[len(page)-1].ID
	}
	return s.in.k.tellAll(ctx, told[:min(len(told), maxTold)], raw)
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

// tellers is how many sessions are told at the same time.
const tellers = 8

func (k *Backend) tellAll(ctx context.Context, sessions []session.Session, raw []byte) error {
	var mu sync.Mutex
	var errs []error
	var work sync.WaitGroup
	turn := make(chan struct{}, tellers)
	for _, x := range sessions {
		turn <- struct{}{}
		work.Go(func() {
			defer func() { <-turn }()
			if err := k.tell(ctx, x, raw); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// tell appends to the common stream of a session. Functions that do so at once take
// turns: each writes behind what it has seen, under a number of its own, so that the
// same words of two are not taken for a repeat.
func (k *Backend) tell(ctx context.Context, s session.Session, raw []byte) error {
	a, open, err := k.commonOf(ctx, s)
	if err != nil || !open {
		return err
	}
	b := session.Batch{
		Session: s.ID, Stream: session.Common, Seq: 1 + rand.Int64N(1<<53), Events: [][]byte{raw}, Expires: time.Now().Add(k.EventAge),
	}
	for tries := 0; ; tries++ {
		tail, err := k.Store.Tail(ctx, s.ID, session.Common)
		if err != nil {
			return err
		}
		b.First = tail.Last + 1
		if a.Conn == noConnection {
			err = k.out.End(ctx, a, b)
		} else {
			err = k.out.Append(ctx, a, b)
		}
		if !errors.Is(err, session.Conflict) {
			return err
		}
		if err := rest(ctx, rand.N(min(time.Millisecond<<min(tries, 10), 100*time.Millisecond))); err != nil {
			return err
		}
	}
}

// noConnection stands for the connection of a WebSocket client that has none: what it
// should hear is owed.
const noConnection = "-"

// commonOf is where the common stream of a session is heard. A session that was not
// initialized or has ended hears nothing.
func (k *Backend) commonOf(ctx context.Context, s session.Session) (a session.Address, open bool, err error) {
	a = session.Address{
		Session: s.ID, Principal: s.Principal, Digest: session.RecordFor(s.Tenant, s.Digest), Box: session.BoxFor(s.Tenant, s.Server),
		Out: s.Transport == session.SSE,
	}
	if s.Transport != session.WebSocket {
		return a, true, nil
	}
	now, _, err := k.Store.Load(ctx, s.ID, "") // connections come and go
	if errors.Is(err, session.NotFound) || err == nil && now.State == session.Ended {
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
		a.Conn, a.EventIDs = conn.ID, conn.EventIDs
	}
	if errors.Is(err, session.NotFound) {
		err = nil
	}
	return a, true, err
}

// Who has subscribed to a resource stands in a value of the server, by the resource:
// sessions are not searched. It is a hint that is never too short: what counts is
// the session's own record, and who is told of a change is looked up there. An entry
// whose session has gone or unsubscribed is dropped then.

// Bounds of the value: how many sessions of a tenant may subscribe to one resource,
// and for how long it is kept that nobody has done so.
const (
	maxSubscribers = 2000
	subscriberLife = 365 * 24 * time.Hour
)

// subscribers is the value.
type subscribers struct {
	Sessions []session.ID `json:"sessions"`
}

func (k *Backend) subscribersOf(s session.Session, uri string) (State, session.StateKey) {
	sum := sha256.Sum256([]byte(uri))
	state := stateOf(k.Store, s, OfServer).Expiring(subscriberLife)
	return state, state.own("\x00subscribers:" + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:20])))
}

// subscribed notes that a session has subscribed to a resource. Its record says so
// already. It is written also where it stands: who drops entries at the same time
// has read the record before.
//
// Errors: Busy (too many), Unavailable.
func (k *Backend) subscribed(ctx context.Context, s session.Session, uri string) error {
	for pruned := false; ; {
		full := false
		err := k.changeSubscribers(ctx, s, uri, func(ids []session.ID) []session.ID {
			if slices.Contains(ids, s.ID) {
				return ids
			}
			if full = len(ids) >= maxSubscribers; full {
				return nil
			}
			return append(ids, s.ID)
		})
		if err != nil || !full {
			return err
		}
		if pruned {
			return session.Errorf(session.Busy, "more than %d sessions have subscribed to this resource; try again when some have ended", maxSubscribers)
		}
		pruned = true
		if _, err := k.subscriberRecords(ctx, s, uri); err != nil {
			return err
		}
	}
}

// changeSubscribers writes what change makes of the entries; nil leaves them.
func (k *Backend) changeSubscribers(ctx context.Context, s session.Session, uri string, change func([]session.ID) []session.ID) error {
	state, key := k.subscribersOf(s, uri)
	for tries := 0; ; tries++ {
		v, err := k.Store.LoadState(ctx, key)
		if err != nil {
			return err
		}
		var subs subscribers
		if v.Rev != 0 {
			if err := json.Unmarshal(v.Data, &subs); err != nil {
				return err
			}
		}
		changed := change(subs.Sessions)
		if changed == nil {
			return nil
		}
		var value any
		if len(changed) > 0 {
			value = subscribers{changed}
		}
		if _, err = state.save(ctx, v, value); !errors.Is(err, session.Conflict) {
			return err
		}
		if err := rest(ctx, rand.N(min(time.Millisecond<<min(tries, 10), 100*time.Millisecond))); err != nil {
			return err
		}
	}
}

// subscriberRecords are the sessions that have subscribed to a resource, by their own
// records. Entries of others are dropped.
func (k *Backend) subscriberRecords(ctx context.Context, s session.Session, uri string) (records []session.Session, err error) {
	var unknown error
	err = k.changeSubscribers(ctx, s, uri, func(ids []session.ID) []session.ID {
		records, unknown = k.confirmed(ctx, s, uri, ids)
		if unknown != nil || len(records) == len(ids) {
			return nil
		}
		left := make([]session.ID, len(records))
		for i, r := range records {
			left[i] = r.ID
		}
		return left
	})
	return records, errors.Join(err, unknown)
}

// confirmed are those of the sessions whose records say that they have subscribed.
func (k *Backend) confirmed(ctx context.Context, s session.Session, uri string, ids []session.ID) ([]session.Session, error) {
	found := make([]session.Session, len(ids))
	errs := make([]error, len(ids))
	var work sync.WaitGroup
	turn := make(chan struct{}, tellers)
	for i, id := range ids {
		turn <- struct{}{}
		work.Go(func() {
			defer func() { <-turn }()
			x, _, err := k.Store.Load(ctx, id, "")
			switch {
			case err != nil && !errors.Is(err, session.NotFound):
				errs[i] = err
			case err == nil && x.State == session.Ready && x.Tenant == s.Tenant && x.Server == s.Server && slices.Contains(x.Subscribed, uri):
				found[i] = x
			}
		})
	}
	work.Wait()
	return slices.DeleteFunc(found, func(x session.Session) bool { return x.ID == "" }), errors.Join(errs...)
}

func (k *Backend) tellSubscribers(ctx context.Context, s session.Session, uri string, raw []byte) error {
	records, err := k.subscriberRecords(ctx, s, uri)
	return errors.Join(err, k.tellAll(ctx, records, raw))
}
