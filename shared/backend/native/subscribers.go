package native

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// These limit the durable value about a resource: how many sessions of a tenant may subscribe
// to the resource, and how long the value is kept after the last subscription.
const (
	maxSubscribers = 2000
	subscriberLife = 365 * 24 * time.Hour
)

// subscribers are the sessions that have subscribed to one resource. A durable value of the
// server lists them, under the name of the resource.
//
// The value may list too many sessions but never too few. The session's own record says
// whether it has subscribed. A change of the resource drops the entries of sessions that have
// gone or have unsubscribed.
type subscribers struct {
	store storage.Store
	of    storage.Session // any session of the server and tenant
	uri   string
	state State
	key   storage.ValueKey
}

// subscriberList is the durable value that lists the subscribers of a resource.
type subscriberList struct {
	Sessions []storage.ID `json:"sessions"`
}

func newSubscribers(store storage.Store, of storage.Session, uri string) subscribers {
	sum := sha256.Sum256([]byte(uri))
	state := stateOf(store, of, OfServer).Expiring(subscriberLife)
	key := state.own("\x00subscribers:" + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:20])))
	return subscribers{store, of, uri, state, key}
}

// add adds a session whose record says that it has subscribed. It writes the value even if
// the value lists the session already, because another instance that read the record before
// the subscription may be about to drop the entry.
//
// Errors: Busy (too many), Unavailable.
func (k subscribers) add(ctx context.Context, id storage.ID) error {
	for pruned := false; ; {
		full := false
		err := k.change(ctx, func(ids []storage.ID) []storage.ID {
			if slices.Contains(ids, id) {
				return ids
			}
			if full = len(ids) >= maxSubscribers; full {
				return nil
			}
			return append(ids, id)
		})
		if err != nil || !full {
			return err
		}
		if pruned {
			return storage.Errorf(storage.Busy, "more than %d sessions have subscribed to this resource; try again when some have ended", maxSubscribers)
		}
		pruned = true
		if _, err := k.records(ctx); err != nil {
			return err
		}
	}
}

// change replaces the entries by the result of the function edit; a nil result leaves them as they
// are.
func (k subscribers) change(ctx context.Context, edit func([]storage.ID) []storage.ID) error {
	return amongOthers(ctx, func() error {
		v, err := k.store.LoadValue(ctx, k.key)
		if err != nil {
			return err
		}
		var subs subscriberList
		if v.Rev != 0 {
			if err := json.Unmarshal(v.Data, &subs); err != nil {
				return err
			}
		}
		changed := edit(subs.Sessions)
		if changed == nil {
			return nil
		}
		var value any
		if len(changed) > 0 {
			value = subscriberList{changed}
		}
		_, err = k.state.save(ctx, v, value)
		return err
	})
}

// records returns the records of the listed sessions that have subscribed. It drops all other
// entries.
func (k subscribers) records(ctx context.Context) (records []storage.Session, err error) {
	var unknown error
	err = k.change(ctx, func(ids []storage.ID) []storage.ID {
		records, unknown = k.confirmed(ctx, ids)
		if unknown != nil || len(records) == len(ids) {
			return nil
		}
		left := make([]storage.ID, len(records))
		for i, r := range records {
			left[i] = r.ID
		}
		return left
	})
	return records, errors.Join(err, unknown)
}

// confirmed returns the given sessions whose records say that they have subscribed.
func (k subscribers) confirmed(ctx context.Context, ids []storage.ID) ([]storage.Session, error) {
	found := make([]storage.Session, len(ids))
	err := each(len(ids), func(i int) error {
		x, _, err := k.store.Load(ctx, ids[i], "")
		if errors.Is(err, storage.NotFound) {
			return nil
		}
		if err == nil && x.State == storage.Ready && x.Tenant == k.of.Tenant && x.Server == k.of.Server && slices.Contains(x.Subscribed, k.uri) {
			found[i] = x
		}
		return err
	})
	return slices.DeleteFunc(found, func(x storage.Session) bool { return x.ID == "" }), err
}
