package quota_test

import (
	"math"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/quota"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m, os.Getenv) }

// The rates are so slow that no token comes while the test runs. Half of the instances
// have just started at each call.
func TestLimitsHoldOnTheRealStores(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open storetest.Open) {
		store := open(t)
		w := &world{t: t, file: `{"principal": "24/d burst 20", "concurrent": 25, "month_usd": 100}`}
		var passed [2]atomic.Int64
		var mu sync.Mutex
		var all []*quota.Limiter
		start := func() *quota.Limiter {
			l := w.instanceOn(store)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, l)
			return l
		}
		var wg sync.WaitGroup
		for i := range 8 {
			l := start()
			wg.Go(func() {
				for range 10 {
					who := i % 2
					if i >= 4 {
						l = start()
					}
					if passes(t, l, by([]string{"ada", "bob"}[who], "acme")) {
						passed[who].Add(1)
					}
					l.Charge("acme", costing(0.02))
				}
			})
		}
		wg.Wait()
		// An instance that had no time to write among so many others keeps what is pending.
		for _, l := range all {
			commontest.OK(t, l.Flush(t.Context()))
		}
		ada, bob := passed[0].Load(), passed[1].Load()
		if ada > 20 || bob > 20 || ada+bob < 36 {
			t.Errorf("%d calls of ada passed, and %d of bob", ada, bob)
		}
		r, err := quota.Show(t.Context(), store, "acme")
		commontest.OK(t, err)
		if math.Abs(r.USD-80*0.02) > 1e-9 {
			t.Errorf("$%v, want $%v", r.USD, 80*0.02)
		}
		_, err = quota.Set(t.Context(), store, "acme", []byte(`{"principal": null}`))
		commontest.OK(t, err)
		if !passes(t, w.instanceOn(store), by("ada", "acme")) {
			t.Error("the limit that was removed still holds")
		}
	})
}
