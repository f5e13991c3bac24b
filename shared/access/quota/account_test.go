package quota_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/quota"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func costing(usd float64) meter.Units {
	one := meter.Published().Cost(meter.Units{Requests: 1})
	return meter.Units{Requests: usd / one}
}

// spentOf returns what a tenant has spent in this month, in US dollars.
func (w *world) spentOf(tenant string) float64 {
	r, err := quota.Show(w.t.Context(), w.store, tenant)
	commontest.OK(w.t, err)
	return r.USD
}

// row stores the account of acme; its text names a month.
func (w *world) row(text, month string) {
	key := storage.ValueKey{Tenant: "acme", Scope: storage.ValueOfServer, Name: "quota.account"}
	_, err := w.store.SaveValue(w.t.Context(), storage.Value{Key: key, Data: fmt.Appendf(nil, text, month), Expires: time.Now().Add(time.Hour)})
	commontest.OK(w.t, err)
}

// Four instances spend a tenth of a cent with each call, and see what the others spend
// only when they read the account.
func TestACapOfMoneyStopsWithinACentForEachInstance(t *testing.T) {
	inTime(t, `{"month_usd": 1}`, func(t *testing.T, w *world) {
		time.Sleep(time.Until(time.Date(2000, 1, 20, 0, 0, 0, 0, time.UTC)))
		const instances = 4
		all := w.instances(instances)
		spent, refused := 0.0, 0
		var last error
		for i := 0; refused < 10*instances; i++ {
			l := all[i%instances]
			if _, err := l.Admit(t.Context(), work("echo")); err != nil {
				last = err
				refused++
			} else {
				l.Charge("acme", costing(0.001))
				spent += 0.001
			}
			time.Sleep(time.Second)
		}
		if spent < 1 || spent > 1+instances*0.01 {
			t.Errorf("stopped at $%.3f", spent)
		}
		limit := limited(t, last)
		if limit.Kind != "spend" || limit.Scope != "tenant" || !strings.Contains(last.Error(), "2000-02-01 00:00 UTC") {
			t.Error(last)
		}
		commontest.EqualIn(t, "a request that is no call passes", false, passes(t, all[0], work()))
		commontest.EqualIn(t, "another tenant passes", true, passes(t, all[0], by("ada", "other")))
		time.Sleep(limit.After)
		if !passes(t, all[1], work("echo")) || w.spentOf("acme") != 0 {
			t.Error("the month does not begin anew")
		}
	})
}

func admit(t *testing.T, l *quota.Limiter, w storage.Work) error {
	t.Helper()
	_, err := l.Admit(t.Context(), w)
	return err
}

func TestWhatIsSpentCostsFewWrites(t *testing.T) {
	inTime(t, `{"month_usd": 100}`, func(t *testing.T, w *world) {
		l := w.instance()
		for range 1000 {
			commontest.OK(t, admit(t, l, work("echo")))
			l.Charge("acme", costing(0.00001))
			time.Sleep(10 * time.Millisecond)
		}
		c := w.count.Counts()
		if c.Writes > 2 || c.Reads > 2 {
			t.Errorf("%+v", c)
		}
	})
}

func TestAnInstanceThatEndsWritesDownWhatIsPending(t *testing.T) {
	inTime(t, `{"month_usd": 100}`, func(t *testing.T, w *world) {
		l := w.instance()
		for _, tenant := range []string{"acme", "other", "acme", "other", "acme"} {
			l.Charge(tenant, costing(0.001))
		}
		if got := w.spentOf("acme"); got > 0.0015 {
			t.Fatalf("$%v are written already", got)
		}
		w.store.Set("SaveValue", storagetest.Faults{Lost: 1})
		commontest.EqualIn(t, "while the store is down", storage.Unavailable, storage.CodeOf(l.Flush(t.Context())))
		w.store.Set("SaveValue", storagetest.Faults{})
		for range 2 { // the second time there is nothing to write
			commontest.OK(t, l.Flush(t.Context()))
		}
		for tenant, want := range map[string]float64{"acme": 0.003, "other": 0.002} {
			if got := w.spentOf(tenant); math.Abs(got-want) > 1e-8 {
				t.Errorf("%s: $%v, want $%v", tenant, got, want)
			}
		}
	})
}

// An earlier release told servers apart, and had limits that are gone.
func TestAnAccountOfAnEarlierReleaseIsRead(t *testing.T) {
	inTime(t, `{"month_usd": 1, "boxes": 3}`, func(t *testing.T, w *world) {
		w.row(`{"limits":{"day":5,"month_usd":2,"servers":{"files":{"day":1}}},"used":{"month":%q,"nanos":{"":1500000000,"files":1500000000},"bytes":{"":5},"day":"2000-01-01","calls":{"":7}}}`, time.Now().UTC().Format("2006-01"))
		l := w.instance()
		if !passes(t, l, work("echo")) || l.Boxes(t.Context(), "acme") != 3 {
			t.Error("the limits that still exist do not hold")
		}
		l.Charge("acme", costing(0.5))
		if got := w.spentOf("acme"); got < 1.9999 || got > 2.0001 || passes(t, l, work("echo")) {
			t.Errorf("$%v are spent, of 2", got)
		}
		if r, err := quota.Set(t.Context(), w.store, "acme", []byte(`{"boxes": 4}`)); err != nil || string(r.Own) != `{"boxes":4,"month_usd":2}` {
			t.Errorf("%s, %v", r.Own, err)
		}
	})
}

func TestATaskIsChargedOnce(t *testing.T) {
	inTime(t, `{"month_usd": 5}`, func(t *testing.T, w *world) {
		u := meter.Task(3600, meter.DefaultBox())
		for range 3 { // the fleet reports it more than once, to instances that have just started
			w.instance().ChargeTask("acme", "task-1", u)
		}
		w.instance().ChargeTask("acme", "task-2", u)
		if got, want := w.spentOf("acme"), 2*meter.Published().Cost(u); math.Abs(got-want) > 1e-8 {
			t.Errorf("$%v, want $%v", got, want)
		}
	})
}

// An instance keeps use that it cannot write, and writes it once the store answers again.
// If only the answer to a write was lost, the instance does not write that use again.
func TestUseIsNeitherLostNorCountedTwiceInTrouble(t *testing.T) {
	inTime(t, `{"month_usd": 1000}`, func(t *testing.T, w *world) {
		l := w.instance()
		w.store.Set("SaveValue", storagetest.Faults{Lost: 0.3, Unanswered: 0.3})
		for range 500 {
			l.Charge("acme", costing(0.02))
			time.Sleep(5 * time.Second)
		}
		w.store.Set("SaveValue", storagetest.Faults{})
		l.Charge("acme", costing(0.02))
		if got := w.spentOf("acme"); math.Abs(got-501*0.02) > 1e-6 {
			t.Errorf("$%v, want $%v", got, 501*0.02)
		}
	})
}

func TestACapRefusesWorkAfterTenMinutesWithoutAFigure(t *testing.T) {
	inTime(t, `{"month_usd": 10}`, func(t *testing.T, w *world) {
		l := w.instance()
		passes(t, l, work("echo"))
		w.fails(storagetest.Faults{Lost: 1})
		time.Sleep(9 * time.Minute)
		commontest.EqualIn(t, "passes after nine minutes", true, passes(t, l, work("echo")))
		time.Sleep(2 * time.Minute)
		if limit := limited(t, admit(t, l, work("echo"))); limit == nil || limit.Kind != "spend" {
			t.Error("not refused after eleven minutes")
		}
		w.fails(storagetest.Faults{})
		time.Sleep(time.Second)
		commontest.EqualIn(t, "passes when the store answers", true, passes(t, l, work("echo")))
	})
}

func TestSetRefusesWhatIsNoLimit(t *testing.T) {
	store := storagetest.NewMemory()
	for _, change := range []string{`[]`, `{"boxes": -1}`, `{"month_usd": "5"}`, `{"principal": "often"}`, `{"wrong": 1}`, `{} {}`} {
		if r, err := quota.Set(t.Context(), store, "acme", []byte(change)); storage.CodeOf(err) != storage.Invalid {
			t.Errorf("%s: %+v, %v", change, r, err)
		}
	}
	if r, err := quota.Show(t.Context(), store, "acme"); err != nil || len(r.Own) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
}
