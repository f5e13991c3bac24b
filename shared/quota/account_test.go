package quota_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/meter"
	"github.com/dormouse-mcp/dormouse/shared/quota"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
)

// costing returns units that cost an amount in US dollars.
func costing(usd float64) meter.Units {
	one := meter.Published().Cost(meter.Units{Requests: 1})
	return meter.Units{Requests: usd / one}
}

// spentOf returns what a tenant has spent in this month, in US dollars.
func (w *world) spentOf(tenant string) float64 {
	r, err := quota.Show(w.t.Context(), w.store, tenant)
	if err != nil {
		w.t.Fatal(err)
	}
	return float64(r.Used.Nanos[""]) / 1e9
}

// Four instances spend a tenth of a cent with each call, and see what the others spend
// only when they read the account.
func TestACapOfMoneyStopsWithinACentForEachInstance(t *testing.T) {
	inTime(t, `{"month_usd": 1}`, "", func(t *testing.T, w *world) {
		time.Sleep(time.Until(time.Date(2000, 1, 20, 0, 0, 0, 0, time.UTC)))
		const instances = 4
		var all []*quota.Limiter
		for range instances {
			all = append(all, w.instance())
		}
		spent, refused := 0.0, 0
		var last error
		for i := 0; refused < 10*instances; i++ {
			l := all[i%instances]
			if _, err := l.Admit(t.Context(), work("echo")); err != nil {
				last = err
				refused++
			} else {
				l.Charge("acme", "", "files", costing(0.001), 10)
				spent += 0.001
			}
			time.Sleep(time.Second)
		}
		if spent < 1 || spent > 1+instances*0.01 {
			t.Errorf("stopped at $%.3f", spent)
		}
		limit := limited(t, last)
		if limit.Kind != "spend" || limit.Scope != "tenant" || !strings.Contains(last.Error(), "$1.00 a month") ||
			!strings.Contains(last.Error(), "2000-02-01 00:00 UTC") || !strings.Contains(last.Error(), "dormouse quotas set") {
			t.Error(last)
		}
		if limited(t, admit(t, all[0], work())) == nil {
			t.Error("a request that is no call may wake a box")
		}
		if !passes(t, all[0], by("ada", "other")) {
			t.Error("another tenant is refused")
		}
		time.Sleep(limit.After)
		if !passes(t, all[1], work("echo")) || w.spentOf("acme") != 0 {
			t.Error("the month does not begin anew")
		}
	})
}

func admit(t *testing.T, l *quota.Limiter, w session.Work) error {
	t.Helper()
	_, err := l.Admit(t.Context(), w)
	return err
}

// Each call meets an instance that has just started.
func TestColdInstancesWriteWhatTheySpend(t *testing.T) {
	inTime(t, `{"month_usd": 1}`, "", func(t *testing.T, w *world) {
		calls := 0
		for ; passes(t, w.instance(), work("echo")) && calls < 200; calls++ {
			l := w.instance()
			l.Charge("acme", "", "files", costing(0.02), 10)
		}
		if calls != 50 {
			t.Errorf("%d calls of 2 cents passed", calls)
		}
	})
}

func TestWhatIsSpentCostsFewWrites(t *testing.T) {
	inTime(t, `{"month_usd": 100}`, "", func(t *testing.T, w *world) {
		l := w.instance()
		for range 1000 {
			if !passes(t, l, work("echo")) {
				t.Fatal("refused")
			}
			l.Charge("acme", "", "files", costing(0.00001), 100)
			time.Sleep(10 * time.Millisecond)
		}
		c := w.count.Counts()
		if c.Writes > 1000/50+1 || c.Reads > 2 {
			t.Errorf("%+v", c)
		}
	})
}

func TestAnInstanceThatEndsWritesDownWhatIsPending(t *testing.T) {
	inTime(t, `{"month_usd": 100}`, "", func(t *testing.T, w *world) {
		l := w.instance()
		for _, tenant := range []string{"acme", "other", "acme", "other", "acme"} {
			l.Charge(tenant, "", "files", costing(0.001), 100)
		}
		if got := w.spentOf("acme"); got > 0.0015 {
			t.Fatalf("$%v are written already", got)
		}
		w.store.Set("SaveValue", sessiontest.Faults{Lost: 1})
		if err := l.Flush(t.Context()); session.CodeOf(err) != session.Unavailable {
			t.Errorf("while the store is down: %v", err)
		}
		w.store.Set("SaveValue", sessiontest.Faults{})
		for range 2 { // the second time there is nothing to write
			if err := l.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for tenant, want := range map[string]float64{"acme": 0.003, "other": 0.002} {
			if got := w.spentOf(tenant); math.Abs(got-want) > 1e-8 {
				t.Errorf("%s: $%v, want $%v", tenant, got, want)
			}
		}
	})
}

func TestBytesAndCallsOfADayAreLimitedForAServer(t *testing.T) {
	inTime(t, `{"month_gb": 1}`, `{"day": 3}`, func(t *testing.T, w *world) {
		l := w.instance()
		for range 3 {
			if !passes(t, l, work("echo")) {
				t.Fatal("refused")
			}
			l.Charge("acme", "", "files", meter.Units{}, 1000)
		}
		limit := limited(t, admit(t, l, work("echo")))
		if limit == nil || limit.Kind != "day" || limit.After > 24*time.Hour {
			t.Fatalf("%v", limit)
		}
		if !passes(t, l, work()) {
			t.Error("a request that is no call counts as a call")
		}
		elsewhere := work("echo")
		elsewhere.Server = "weather"
		if !passes(t, l, elsewhere) {
			t.Error("the limit of one server refuses calls of another")
		}
		time.Sleep(limit.After)
		if !passes(t, l, work("echo")) {
			t.Error("the day does not begin anew")
		}
		l.Charge("acme", "", "weather", meter.Units{}, 1<<30)
		if limit := limited(t, admit(t, l, work("echo"))); limit == nil || limit.Kind != "bytes" {
			t.Errorf("%v", limit)
		}
	})
}

// Four instances spend for one principal, as in the test of a tenant's cap. The cap
// refuses no other principal.
func TestACapOfAPrincipalStopsItWithinACentForEachInstance(t *testing.T) {
	inTime(t, `{"principal_month_usd": 0.5, "month_usd": 100}`, "", func(t *testing.T, w *world) {
		time.Sleep(time.Until(time.Date(2000, 1, 20, 0, 0, 0, 0, time.UTC)))
		const instances = 4
		var all []*quota.Limiter
		for range instances {
			all = append(all, w.instance())
		}
		spent, refused := 0.0, 0
		var last error
		for i := 0; refused < 10*instances; i++ {
			l := all[i%instances]
			if !passes(t, l, by("bob", "acme")) {
				t.Fatal("bob is refused")
			}
			l.Charge("acme", "bob", "files", costing(0.0001), 10)
			if err := admit(t, l, work("echo")); err != nil {
				last = err
				refused++
			} else {
				l.Charge("acme", "ada", "files", costing(0.001), 10)
				spent += 0.001
			}
			time.Sleep(time.Second)
		}
		if spent < 0.5 || spent > 0.5+instances*0.01 {
			t.Errorf("stopped at $%.3f", spent)
		}
		limit := limited(t, last)
		if limit.Kind != "spend" || limit.Scope != "principal" || !strings.Contains(last.Error(), "$0.50 a month for you is used up") ||
			!strings.Contains(last.Error(), "2000-02-01 00:00 UTC") || !strings.Contains(last.Error(), "raises principal_month_usd (dormouse quotas set)") {
			t.Error(last)
		}
		if !passes(t, all[0], by("ada", "other")) {
			t.Error("ada of another tenant is refused")
		}
		if _, err := quota.Set(t.Context(), w.store, "acme", []byte(`{"principal_month_usd": 0.6}`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(31 * time.Second)
		if !passes(t, all[1], work("echo")) {
			t.Error("a cap that the operator has raised is not")
		}
		time.Sleep(limit.After)
		if r, err := quota.Show(t.Context(), w.store, "acme"); !passes(t, all[1], work("echo")) || err != nil || len(r.Used.Principals) != 0 {
			t.Error("the month does not begin anew", r.Used, err)
		}
	})
}

func TestBytesOfAPrincipalAreLimited(t *testing.T) {
	inTime(t, `{"principal_month_gb": 1}`, "", func(t *testing.T, w *world) {
		w.instance().Charge("acme", "ada", "files", meter.Units{}, 1<<30-1)
		l := w.instance()
		if !passes(t, l, work("echo")) {
			t.Fatal("refused below the cap")
		}
		l.Charge("acme", "ada", "weather", meter.Units{}, 1)
		err := admit(t, w.instance(), work())
		if limit := limited(t, err); limit == nil || limit.Kind != "bytes" || limit.Scope != "principal" || !strings.Contains(err.Error(), "principal_month_gb") {
			t.Errorf("%v", err)
		}
		if !passes(t, w.instance(), by("bob", "acme")) {
			t.Error("bob is refused")
		}
		r, err := quota.Show(t.Context(), w.store, "acme")
		if err != nil || r.Used.Principals["ada"] != (quota.Share{Bytes: 1 << 30}) || len(r.Used.Principals) != 1 {
			t.Errorf("%+v, %v", r.Used, err)
		}
	})
}

// The account of a tenant also holds what each principal has used. So caps of principals
// cost no read or write.
func TestCapsOfPrincipalsCostTheStoreNothing(t *testing.T) {
	costs := func(t *testing.T, w *world) sessiontest.Counts {
		l := w.instance()
		for i := range 1000 {
			who := by([]string{"ada", "bob", "eve"}[i%3], "acme")
			if !passes(t, l, who) {
				t.Fatal("refused")
			}
			l.Charge("acme", who.Principal, "files", costing(0.00001), 100)
			time.Sleep(10 * time.Millisecond)
		}
		return w.count.Counts()
	}
	inTime(t, `{"month_usd": 100}`, "", func(t *testing.T, w *world) {
		capped := newWorld(t, w.open, `{"month_usd": 100, "principal_month_usd": 50, "principal_month_gb": 5}`, "")
		if without, with := costs(t, w), costs(t, capped); without.Reads != with.Reads || without.Writes != with.Writes {
			t.Errorf("%+v, without caps of principals %+v", with, without)
		}
	})
}

// The account tells a thousand principals apart. What further principals use counts only
// for their tenant.
func TestAnAccountWithManyPrincipalsStaysSmall(t *testing.T) {
	inTime(t, `{"principal_month_gb": 1, "month_gb": 1}`, "", func(t *testing.T, w *world) {
		l := w.instance()
		for i := range 1500 {
			l.Charge("acme", fmt.Sprint("user-", i), "files", meter.Units{}, 1<<18)
		}
		time.Sleep(time.Minute)
		l.Charge("acme", "user-0", "files", meter.Units{}, 1)
		r, err := quota.Show(t.Context(), w.store, "acme")
		if err != nil || len(r.Used.Principals) != 1000 || r.Used.Bytes[""] != 1500<<18+1 {
			t.Errorf("%d principals, %d bytes, %v", len(r.Used.Principals), r.Used.Bytes[""], err)
		}
	})
}

func TestATaskIsChargedOnce(t *testing.T) {
	inTime(t, `{"month_usd": 5}`, "", func(t *testing.T, w *world) {
		u := meter.Task(3600, meter.DefaultBox())
		for range 3 { // the fleet reports it more than once, to instances that have just started
			w.instance().ChargeTask("acme", "files", "task-1", u)
		}
		w.instance().ChargeTask("acme", "files", "task-2", u)
		if got, want := w.spentOf("acme"), 2*meter.Published().Cost(u); math.Abs(got-want) > 1e-8 {
			t.Errorf("$%v, want $%v", got, want)
		}
	})
}

// An instance keeps use that it cannot write, and writes it once the store answers again.
// If only the answer to a write was lost, the instance does not write that use again.
func TestUseIsNeitherLostNorCountedTwiceInTrouble(t *testing.T) {
	inTime(t, `{"month_usd": 1000}`, "", func(t *testing.T, w *world) {
		l := w.instance()
		w.store.Set("SaveValue", sessiontest.Faults{Lost: 0.3, Unanswered: 0.3})
		for range 500 {
			l.Charge("acme", "", "files", costing(0.02), 10)
			time.Sleep(5 * time.Second)
		}
		w.store.Set("SaveValue", sessiontest.Faults{})
		l.Charge("acme", "", "files", costing(0.02), 10)
		if got := w.spentOf("acme"); math.Abs(got-501*0.02) > 1e-6 {
			t.Errorf("$%v, want $%v", got, 501*0.02)
		}
	})
}

func TestACapRefusesWorkAfterTenMinutesWithoutAFigure(t *testing.T) {
	inTime(t, `{"month_usd": 10}`, "", func(t *testing.T, w *world) {
		l := w.instance()
		passes(t, l, work("echo"))
		w.store.Set("LoadValue", sessiontest.Faults{Lost: 1})
		w.store.Set("SaveValue", sessiontest.Faults{Lost: 1})
		time.Sleep(9 * time.Minute)
		if !passes(t, l, work("echo")) {
			t.Error("refused after nine minutes")
		}
		time.Sleep(2 * time.Minute)
		if limit := limited(t, admit(t, l, work("echo"))); limit == nil || limit.Kind != "spend" {
			t.Error("not refused after eleven minutes")
		}
		w.store.Set("LoadValue", sessiontest.Faults{})
		w.store.Set("SaveValue", sessiontest.Faults{})
		time.Sleep(time.Second)
		if !passes(t, l, work("echo")) {
			t.Error("refused although the store answers")
		}
	})
}

func TestSetRefusesWhatIsNoLimit(t *testing.T) {
	store := sessiontest.NewMemory()
	for _, change := range []string{`[]`, `{"day": -1}`, `{"month_usd": "5"}`, `{"principal": "often"}`, `{"wrong": 1}`, `{"servers": {"x": {"boxes": 1}}}`, `{"tools": {"a": "1/s"}}`, `{"servers": {"x": 5}}`, `{} {}`} {
		if r, err := quota.Set(t.Context(), store, "acme", []byte(change)); session.CodeOf(err) != session.Invalid {
			t.Errorf("%s: %+v, %v", change, r, err)
		}
	}
	if r, err := quota.Show(t.Context(), store, "acme"); err != nil || len(r.Own) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
}
