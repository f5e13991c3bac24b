package local

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// A store serves one Run at a time: a second one would treat the boxes of the first as lost, and
// end their calls. The lock of the data folder guards the store in that folder. Any other store has a
// lease, a durable value that its Run writes again and again.
const (
	leaseFor   = time.Minute      // a lease that was not written for so long belongs to nobody
	leaseRenew = 20 * time.Second // time between two writes of a lease; not shorter, because each write to DynamoDB costs money
)

// storeLease is the right of one Run to use a store.
type storeLease struct {
	store storage.Values
	by    leaseHolder
	saved storage.Value // the lease as this Run wrote it last
}

// leaseHolder says who has a lease.
type leaseHolder struct {
	Folder string `json:"folder"` // a hash that stands for the data folder
	Where  string `json:"where"`  // host and path of the data folder, for people
}

// newStoreLease returns the lease of a store for the Run that uses this data folder.
func newStoreLease(store storage.Values, secret []byte, path string) *storeLease {
	host, _ := os.Hostname() // without it, the path alone names the folder
	where := cmp.Or(host, "a host without a name") + ":" + path
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("store " + where))
	return &storeLease{store: store, by: leaseHolder{hex.EncodeToString(mac.Sum(nil)), where}}
}

// errLeased is the error for a store that another Run uses.
var errLeased = errors.New("is in use by another dormouse run")

// take takes the lease. If the Run of another data folder has it, take calls waits once, and watches
// the lease for leaseFor. If the lease is written meanwhile, take fails. If not, that Run has crashed,
// and take takes its lease.
//
// Errors: errLeased, and those of the store.
func (l *storeLease) take(ctx context.Context, waits func(where string)) error {
	key := storage.ValueKey{Scope: storage.ValueOfServer, Name: "dormouse run"}
	var seen int64
	var since time.Time
	for {
		v, err := l.store.LoadValue(ctx, key)
		if err != nil {
			return err
		}
		v.Key = key
		var by leaseHolder
		_ = json.Unmarshal(v.Data, &by) // a lease that cannot be read counts as another Run's
		switch {
		case v.Rev == 0, by.Folder == l.by.Folder, v.Rev == seen && time.Since(since) >= leaseFor:
			l.saved = v
			if err := l.write(ctx, true); !errors.Is(err, storage.Conflict) {
				return err
			}
		case seen == 0:
			seen, since = v.Rev, time.Now()
			waits(by.Where)
		case v.Rev != seen:
			return fmt.Errorf("the store %w, at %s: stop that one, or name another store with --store", errLeased, by.Where)
		}
		if err := storage.Rest(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// write writes the lease with this Run as its holder, or deletes it.
func (l *storeLease) write(ctx context.Context, held bool) error {
	v := l.saved
	v.Data = nil
	if held {
		v.Data, _ = json.Marshal(l.by) // strings always marshal
	}
	v, err := l.store.SaveValue(ctx, v)
	if err == nil {
		l.saved = v
	}
	return err
}

// lost is called after the store refused a write of the lease, because the lease has another revision.
// If another Run has the lease, lost returns errLeased. Otherwise the store has an earlier write of
// this Run, whose answer did not arrive, and lost sets l.saved to it.
func (l *storeLease) lost(ctx context.Context) error {
	v, err := l.store.LoadValue(ctx, l.saved.Key)
	if err != nil {
		return err
	}
	var by leaseHolder
	_ = json.Unmarshal(v.Data, &by) // a lease that cannot be read counts as another Run's
	if v.Rev != 0 && by != l.by {
		return fmt.Errorf("the store %w since this one was cut off from it, at %s", errLeased, by.Where)
	}
	v.Key = l.saved.Key
	l.saved = v
	return nil
}

// keep renews the lease until ctx ends. It returns errLeased if another Run has taken the lease.
// While the store fails, it tries again.
func (l *storeLease) keep(ctx context.Context) error {
	for storage.Rest(ctx, leaseRenew) == nil {
		if errors.Is(l.write(ctx, true), storage.Conflict) {
			if err := l.lost(ctx); errors.Is(err, errLeased) {
				return err
			}
		}
	}
	return nil
}

// release gives the lease back, so that the next Run need not wait.
func (l *storeLease) release(ctx context.Context) error {
	err := l.write(ctx, false)
	if errors.Is(err, storage.Conflict) && l.lost(ctx) == nil {
		err = l.write(ctx, false)
	}
	return err
}

// lease takes the lease of the store, unless the store is in the data folder.
func (in *inprocess) lease(ctx context.Context) error {
	m := in.m
	if m.store == sqlite+m.folder.File(StoreFile) {
		return nil
	}
	l := newStoreLease(in.store, m.folder.Secret, m.folder.Path)
	err := l.take(ctx, func(where string) {
		m.log.Warn("the store has a lease", "of", where)
		m.recorder.Record(journal.Event{Kind: journal.FolderTrouble, Reason: "the store was last used by dormouse run at " + where, Hint: "if that one has crashed, this one starts within " + leaseFor.String()})
	})
	if err != nil {
		return err
	}
	kept, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended, taken := make(chan struct{}), false
	go func() {
		defer close(ended)
		if err := l.keep(kept); err != nil {
			trouble(m, err.Error(), "this one ends")
			taken = true
			m.fail(err)
		}
	}()
	in.release = func(ctx context.Context) error {
		stop()
		<-ended
		if taken { // by another program
			return nil
		}
		return l.release(ctx)
	}
	return nil
}
