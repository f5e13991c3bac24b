package quota_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/quota"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
	"github.com/dormouse-mcp/dormouse/shared/store/storetest"
)

// world is a store with instances of functions that share it.
type world struct {
	t     *testing.T
	open  storetest.Open
	store *storagetest.Faulty
	count *storagetest.Counting
	file  string // limits of the servers file
}

func inTime(t *testing.T, file string, test func(t *testing.T, w *world)) {
	t.Helper()
	storetest.InTime(t, func(t *testing.T, open storetest.Open) {
		count := storagetest.NewCounting(open(t))
		test(t, &world{t: t, open: open, store: storagetest.NewFaulty(count, 1, storagetest.Faults{}), count: count, file: file})
	})
}

func (w *world) instance() *quota.Limiter { return w.instanceOn(w.store) }

func (w *world) instances(n int) (all []*quota.Limiter) {
	w.t.Helper()
	for range n {
		all = append(all, w.instance())
	}
	return all
}

func (w *world) fails(how storagetest.Faults) {
	w.store.Set("LoadValue", how)
	w.store.Set("SaveValue", how)
}

func (w *world) instanceOn(store storage.Store) *quota.Limiter {
	w.t.Helper()
	l, err := quota.New(quota.Config{Store: store, Limits: []byte(w.file), Prices: meter.Published()})
	commontest.OK(w.t, err)
	return l
}

func work(tools ...string) storage.Work {
	return storage.Work{Tenant: "acme", Principal: "ada", Server: "files", Session: storage.NewID(), Stream: storage.NewStreamID(), Tools: tools}
}

func by(principal, tenant string) storage.Work {
	w := work("echo")
	w.Principal, w.Tenant = principal, tenant
	return w
}

// limited returns the limit behind an error, or nil if there is no error.
func limited(t *testing.T, err error) *storage.Limited {
	t.Helper()
	if err == nil {
		return nil
	}
	var l *storage.Limited
	if !errors.As(err, &l) || !errors.Is(err, storage.Busy) || l.After <= 0 {
		t.Fatalf("not a limit that says when to come back: %v", err)
	}
	return l
}

func passes(t *testing.T, l *quota.Limiter, w storage.Work) bool {
	t.Helper()
	return limited(t, admit(t, l, w)) == nil
}

// passedIn returns how many calls pass in a time, of five a second.
func passedIn(t *testing.T, lasts time.Duration, l *quota.Limiter) (passed int) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < lasts; time.Sleep(200 * time.Millisecond) {
		if passes(t, l, work("echo")) {
			passed++
		}
	}
	return passed
}

func TestTheTwentyFirstCallInASecondIsRefused(t *testing.T) {
	for _, cold := range []bool{false, true} {
		inTime(t, `{"principal": "60/m burst 20"}`, func(t *testing.T, w *world) {
			warm := w.instance()
			instance := func() *quota.Limiter {
				if cold {
					return w.instance()
				}
				return warm
			}
			for i := range 20 {
				if !passes(t, instance(), work("echo")) {
					t.Fatalf("cold %v: call %d is refused", cold, i+1)
				}
			}
			_, err := instance().Admit(t.Context(), work("echo"))
			l := limited(t, err)
			if l == nil || l.Kind != "rate" || l.Scope != "principal" || l.After > time.Second || !strings.Contains(err.Error(), "try again in 1 s (limit 60 a minute for you)") {
				t.Fatalf("cold %v: %v", cold, err)
			}
			if !passes(t, instance(), by("bob", "acme")) || !passes(t, instance(), by("ada", "other")) {
				t.Error("the limit is not the principal's own")
			}
			time.Sleep(l.After)
			if !passes(t, instance(), work("echo")) || passes(t, instance(), work("echo")) {
				t.Errorf("cold %v: after the time one call must pass, and no more", cold)
			}
		})
	}
}

// Eight processes are called in turn, as often as they can be.
func TestEightProcessesKeepOneLimit(t *testing.T) {
	for rate, lasts := range map[string]time.Duration{"60/m burst 20": 2 * time.Minute, "3000/m burst 250": 12 * time.Second} {
		limit, err := quota.ParseRate(rate)
		commontest.OK(t, err)
		inTime(t, fmt.Sprintf(`{"principal": %q}`, rate), func(t *testing.T, w *world) {
			processes := w.instances(8)
			begun := time.Now()
			var passed []time.Duration
			for i := 0; time.Since(begun) < lasts; i++ {
				if passes(t, processes[i%8], work("echo")) {
					passed = append(passed, time.Since(begun))
				}
				time.Sleep(lasts / 4000)
			}
			for i := range passed {
				// In each time from here on, as many calls pass as the burst and the rate give.
				for j := i; j < len(passed); j++ {
					if most := limit.Burst + 1 + int(int64(limit.N)*int64(passed[j]-passed[i])/int64(limit.Per)); j-i+1 > most {
						t.Fatalf("%s: %d calls from %s to %s, at most %d may", rate, j-i+1, passed[i], passed[j], most)
					}
				}
			}
			if all := limit.N * int(lasts/time.Second) / 60; len(passed) < all*8/10 {
				t.Errorf("%s: %d of %d calls passed", rate, len(passed), all)
			}
		})
	}
}

func TestARefusedCallCostsTheStoreNothing(t *testing.T) {
	inTime(t, `{"principal": "60/m burst 1"}`, func(t *testing.T, w *world) {
		l := w.instance()
		passes(t, l, work("echo"))
		w.count.Reset()
		for range 50 {
			if passes(t, l, work("echo")) {
				t.Fatal("not refused")
			}
		}
		if c := w.count.Counts(); c.Reads+c.Writes > 0 {
			t.Errorf("%+v", c)
		}
	})
}

func TestABatchIsChargedAsAWhole(t *testing.T) {
	inTime(t, `{"principal": "60/m burst 5"}`, func(t *testing.T, w *world) {
		l := w.instance()
		if !passes(t, l, work("a", "b", "c")) || passes(t, l, work("a", "b", "c")) || !passes(t, l, work("a", "b")) || passes(t, l, work("a")) {
			t.Error("three and two calls fill the bucket of five, and three more do not fit between")
		}
	})
}

// A client leaves while its call waits for a slot. By then, the call has the only token.
func TestACallWhoseClientLeavesIsGivenBack(t *testing.T) {
	inTime(t, `{"concurrent": 1, "principal": "24/d burst 2"}`, func(t *testing.T, w *world) {
		undo, err := w.instance().Admit(t.Context(), work("slow"))
		commontest.OK(t, err)
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(900*time.Millisecond, leave)
		if _, err := w.instance().Admit(ctx, work("echo")); !errors.Is(err, context.Canceled) {
			t.Fatalf("the call did not wait until its client left: %v", err)
		}
		undo()
		for range 2 {
			undo, err := w.instance().Admit(t.Context(), work("echo"))
			commontest.OKIn(t, "the next call", err)
			undo()
		}
	})
}

func TestThreeCallsDoNotRunWhereTwoMay(t *testing.T) {
	inTime(t, `{"concurrent": 2}`, func(t *testing.T, w *world) {
		first, second := work("slow"), work("slow")
		if !passes(t, w.instance(), first) || !passes(t, w.instance(), second) {
			t.Fatal("two may run")
		}
		begun := time.Now()
		_, err := w.instance().Admit(t.Context(), work("slow"))
		if l := limited(t, err); l == nil || l.Kind != "concurrent" || time.Since(begun) < time.Second || time.Since(begun) > 2500*time.Millisecond {
			t.Fatalf("%v after %s", err, time.Since(begun))
		}
		// A call ends while the third one waits.
		go func() {
			time.Sleep(time.Second)
			w.end(first)
		}()
		third := work("slow")
		if !passes(t, w.instance(), third) || passes(t, w.instance(), work("slow")) {
			t.Fatal("the end of one call makes room for one")
		}
		// The functions of two calls have died: their slots are free after half a minute.
		time.Sleep(30 * time.Second)
		for range 2 {
			commontest.EqualIn(t, "calls that died leave their places", true, passes(t, w.instance(), work("slow")))
		}
	})
}

// A call that runs for long keeps its slot, because its item says that it runs.
func TestALongCallKeepsItsPlace(t *testing.T) {
	inTime(t, `{"concurrent": 1}`, func(t *testing.T, w *world) {
		long := work("slow")
		if !passes(t, w.instance(), long) {
			t.Fatal("refused")
		}
		box := storage.BoxFor("acme", "files")
		_, err := w.store.PutItem(t.Context(), storage.Item{Box: box, ID: long.Stream, State: storage.Taken, Gen: 1})
		commontest.OK(t, err)
		time.Sleep(time.Hour)
		commontest.EqualIn(t, "the place was given away", false, passes(t, w.instance(), work("slow")))
		w.end(long)
		commontest.EqualIn(t, "the place is free", true, passes(t, w.instance(), work("slow")))
	})
}

func (w *world) end(c storage.Work) {
	err := w.store.Append(context.Background(), storage.Batch{
		Session: c.Session, Stream: c.Stream, First: 1, Final: true, Events: [][]byte{[]byte(`{}`)}, Expires: time.Now().Add(time.Hour),
	})
	commontest.Check(w.t, err)
}

// One instance has a wrong clock. The others have right clocks: one stays, and new ones come and go.
func TestAClockThatIsWrongDoesNotRaiseALimit(t *testing.T) {
	for _, ahead := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		inTime(t, `{"principal": "60/m burst 20"}`, func(t *testing.T, w *world) {
			right, wrong := w.instance(), w.instance()
			wrong.SkewForTest(ahead)
			// One burst comes too early when the instances first see the time of the wrong clock.
			for minute, most := range []int{60 + 2*20 + 1, 61} {
				passed := 0
				for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(200 * time.Millisecond) {
					for _, l := range []*quota.Limiter{right, wrong, w.instance()} {
						if passes(t, l, work("echo")) {
							passed++
						}
					}
				}
				if passed > most || passed < 48 {
					t.Errorf("%s: %d calls passed in minute %d, 48 to %d may", ahead, passed, minute, most)
				}
			}
			for name, l := range map[string]*quota.Limiter{"the right clock": right, "the wrong clock": wrong, "a new instance": w.instance()} {
				if passed := passedIn(t, time.Minute, l); passed > 61 || passed < 48 {
					t.Errorf("%s: %d calls passed in a minute of %s alone, 48 to 61 may", ahead, passed, name)
				}
			}
		})
	}
}

func TestAClockThatIsSetBackLetsCallsPassAgain(t *testing.T) {
	inTime(t, `{"principal": "60/m burst 20"}`, func(t *testing.T, w *world) {
		l := w.instance()
		l.SkewForTest(24 * time.Hour)
		passes(t, l, work("echo"))
		l.SkewForTest(0)
		if passed := passedIn(t, 2*time.Minute, l); passed < 100 {
			t.Errorf("%d calls passed in two minutes, 100 or more may", passed)
		}
	})
}

func TestALimitHoldsHalfwayWhileTheStoreIsDown(t *testing.T) {
	inTime(t, `{"principal": "60/m burst 20"}`, func(t *testing.T, w *world) {
		l := w.instance()
		passes(t, l, work("echo"))
		w.fails(storagetest.Faults{Lost: 1})
		passed := passedIn(t, 10*time.Minute, l)
		if passed < 250 || passed > 320 {
			t.Errorf("%d calls passed in ten minutes, about 300 may", passed)
		}
		w.fails(storagetest.Faults{})
		passed = passedIn(t, time.Minute, l)
		if passed > 81 || passed < 60 {
			t.Errorf("%d calls passed in the minute after it", passed)
		}
	})
}

func TestAChangedLimitHoldsWithinThirtySeconds(t *testing.T) {
	inTime(t, `{"principal": "60/m burst 1"}`, func(t *testing.T, w *world) {
		l := w.instance()
		passes(t, l, work("echo"))
		if passes(t, l, work("echo")) {
			t.Fatal("the limit of the file does not hold")
		}
		set := func(change string, want int) {
			_, err := quota.Set(t.Context(), w.store, "acme", []byte(change))
			commontest.OK(t, err)
			time.Sleep(30 * time.Second)
			n := 0
			for n < 100 && passes(t, l, work("echo")) {
				n++
			}
			commontest.EqualIn(t, change+": calls at once", want, n)
		}
		set(`{"principal": "60/m burst 7"}`, 7)
		set(`{"principal": null, "boxes": 5}`, 100)
		if a, b := l.Boxes(t.Context(), "acme"), l.Boxes(t.Context(), "other"); a != 5 || b != 0 {
			t.Errorf("%d and %d boxes", a, b)
		}
		set(`{"principal": "1/d"}`, 1)
		set(`{"principal": "file"}`, 1)
		if passes(t, l, by("ada", "other")); passes(t, l, by("ada", "other")) {
			t.Error("the limits of one tenant changed those of another")
		}
	})
}

// No key of a native server's value is that of a row of limits.
func TestANativeServerCannotReachTheRowsOfLimits(t *testing.T) {
	inTime(t, `{"principal": "60/m burst 1"}`, func(t *testing.T, w *world) {
		passes(t, w.instance(), work("echo"))
		w.instance().Charge("acme", meter.Units{Requests: 1e6})
		for _, name := range []string{"quota.account", "quota.calls", "quota.slots"} {
			v := storage.Value{Key: storage.ValueKey{Tenant: "acme", Server: "files", Scope: storage.ValueOfServer, Name: name}, Data: []byte(`{"limits":{"principal":"off"},"used":{}}`)}
			_, err := w.store.SaveValue(t.Context(), v)
			commontest.OK(t, err)
		}
		if w.spentOf("acme") == 0 || passes(t, w.instance(), work("echo")) {
			t.Error("the server has changed its limits")
		}
	})
}

func TestTenTimesTheRateIsAFlood(t *testing.T) {
	inTime(t, `{"principal": "60/m burst 20"}`, func(t *testing.T, w *world) {
		l := w.instance()
		for i := range 20 * 9 {
			passes(t, l, work("echo"))
			commontest.OKIn(t, fmt.Sprintf("after %d calls", i+1), l.Flooding("acme", "ada"))
		}
		for range 40 {
			passes(t, l, work("echo"))
		}
		err := l.Flooding("acme", "ada")
		if limit := limited(t, err); limit == nil || !limit.Flood {
			t.Fatal("no flood")
		}
		if l.Flooding("acme", "bob") != nil || l.Flooding("other", "ada") != nil {
			t.Error("another caller is refused")
		}
		time.Sleep(10 * time.Second)
		if l.Flooding("acme", "ada") != nil || !passes(t, l, work("echo")) {
			t.Error("the flood does not end")
		}
	})
}

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
		commontest.EqualIn(t, "without the limit that was removed, a call passes", true, passes(t, w.instanceOn(store), by("ada", "acme")))
	})
}
