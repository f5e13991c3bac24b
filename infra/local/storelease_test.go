package local

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// leases runs a test with the lease of one Run, which another Run wants to have.
func leases(t *testing.T, test func(t *testing.T, store storage.Store, one, two *storeLease)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := storagetest.NewMemory()
		one, two := newStoreLease(store, []byte("one"), "/one"), newStoreLease(store, []byte("two"), "/two")
		commontest.OK(t, one.take(t.Context(), func(string) { t.Error("it waits for nobody") }))
		test(t, store, one, two)
	})
}

// takes takes a lease, and returns how long that took.
func takes(t *testing.T, l *storeLease) (time.Duration, error) {
	t.Helper()
	begun := time.Now()
	err := l.take(t.Context(), func(string) {})
	return time.Since(begun), err
}

func TestAStoreServesOneRunAtATime(t *testing.T) {
	leases(t, func(t *testing.T, _ storage.Store, one, two *storeLease) {
		ctx, stop := context.WithCancel(t.Context())
		kept := make(chan error, 1)
		go func() { kept <- one.keep(ctx) }()
		if took, err := takes(t, two); !errors.Is(err, errLeased) || took > leaseRenew+time.Second {
			t.Errorf("the second has %v, after %v", err, took)
		}
		stop()
		commontest.OK(t, <-kept)
		commontest.OK(t, one.release(t.Context()))
		if took, err := takes(t, two); err != nil || took > time.Second {
			t.Errorf("after the end of the first the second has %v, after %v", err, took)
		}
	})
}

// A Run that has crashed keeps its own next start waiting for nothing, and others for some seconds.
func TestAStoreIsFreeAfterACrash(t *testing.T) {
	leases(t, func(t *testing.T, store storage.Store, _, two *storeLease) {
		again := newStoreLease(store, []byte("one"), "/one")
		if took, err := takes(t, again); err != nil || took > 0 {
			t.Errorf("the same folder has %v, after %v", err, took)
		}
		if took, err := takes(t, two); err != nil || took < leaseFor || took > leaseFor+time.Second {
			t.Errorf("another folder has %v, after %v", err, took)
		}
	})
}

// A Run that stood still for longer than its lease learns that another has the store now. One whose
// store did not answer goes on.
func TestARunWhoseStoreWasTakenEnds(t *testing.T) {
	leases(t, func(t *testing.T, _ storage.Store, one, two *storeLease) {
		_, err := takes(t, two)
		commontest.OK(t, err)
		if err := one.keep(t.Context()); !errors.Is(err, errLeased) {
			t.Errorf("the first goes on: %v", err)
		}
	})
	leases(t, func(t *testing.T, store storage.Store, one, two *storeLease) {
		lost := false
		one.store = intercept.New(store, func(ctx context.Context, c *intercept.Call, do func(context.Context) error) error {
			err := do(ctx)
			if c.Kind == intercept.Write && !lost {
				lost, err = true, storage.Errorf(storage.Unavailable, "the answer is lost")
			}
			return err
		})
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		commontest.OK(t, one.keep(ctx))
		if _, err := takes(t, two); err != nil || !lost {
			t.Errorf("lost: %v, %v", lost, err)
		}
	})
}

// The store in a data folder needs no lease. A second machine on any other store does not start, and
// the first goes on.
func TestASecondMachineOnAStoreDoesNotStart(t *testing.T) {
	t.Parallel()
	store := "sqlite:" + filepath.Join(t.TempDir(), "shared.db")
	shared := func(c *Config) { c.Store = store }
	first, second := started(t, shared), configured(t, shared)
	// The first renews its lease, more often than by itself.
	renewed := newStoreLease(first.functions.(*inprocess).store, first.folder.Secret, first.folder.Path)
	ctx, stop := context.WithCancel(t.Context())
	var renews sync.WaitGroup
	renews.Go(func() {
		for storage.Rest(ctx, 100*time.Millisecond) == nil {
			_ = renewed.take(ctx, func(string) {}) // an error is ignored: the next one renews it
		}
	})
	if err := second.start(t.Context()); !errors.Is(err, errLeased) {
		t.Errorf("the second starts: %v", err)
	}
	stop()
	renews.Wait()
	second.stop(t.Context())
	first.stop(t.Context())
	third := started(t, shared)
	third.stop(t.Context())
}
