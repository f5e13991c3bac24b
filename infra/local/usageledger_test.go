package local

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/meter"
)

func testLedger(saved Bill) *ledger {
	return newLedger(func(string) meter.BoxSize { return meter.BoxSize{VCPUs: 1, MemoryMB: 1024} }, saved)
}

// sharesOf is a bill's shares by their owner.
func sharesOf(b Bill) map[Owner]meter.Units {
	all := map[Owner]meter.Units{}
	for _, s := range b.Shares {
		all[s.Owner] = s.Units
	}
	return all
}

const spentLine = `{"msg":"request","server":"one","tenant":"acme","session_id":"s1","connection_id":"c1","units":{"invocations":1,"read_units":2,"write_units":3}}`

func TestALineIsItsOwnersAndPartOfTheTotal(t *testing.T) {
	l := testLedger(Bill{})
	l.line(spentLine)
	l.line(spentLine)
	l.line(`{"msg":"request","server":"one"}`)
	l.line(`no JSON with "units":{`)
	b := l.bill(time.Now(), nil)
	if d := cmp.Diff(meter.Units{Invocations: 2, ReadUnits: 4, WriteUnits: 6}, b.Total()); d != "" {
		t.Errorf("total (-want +got):\n%s", d)
	}
	want := map[Owner]meter.Units{{"one", "acme", "s1"}: {Invocations: 2, ReadUnits: 4, WriteUnits: 6}}
	if d := cmp.Diff(want, sharesOf(b)); d != "" {
		t.Errorf("shares (-want +got):\n%s", d)
	}
}

func TestWhoWasNotLetInOwnsNothing(t *testing.T) {
	l := testLedger(Bill{})
	l.line(`{"server":"one","tenant":"","session_id":"stolen","units":{"invocations":1}}`)
	want := map[Owner]meter.Units{{}: {Invocations: 1}}
	if d := cmp.Diff(want, sharesOf(l.bill(time.Now(), nil))); d != "" {
		t.Errorf("shares (-want +got):\n%s", d)
	}
}

func TestAConnectionIsBilledToWhoSpokeOverIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLedger(Bill{})
		l.opened("c1")
		l.opened("c2")
		l.line(spentLine)
		time.Sleep(time.Minute)
		l.closed("c2", time.Minute)
		time.Sleep(30 * time.Second)
		check := func(when string) {
			t.Helper()
			got := sharesOf(l.bill(time.Now(), nil))
			if got[Owner{"one", "acme", "s1"}].ConnectionMinutes != 1.5 || got[Owner{}].ConnectionMinutes != 1 {
				t.Errorf("%s: shares are %+v", when, got)
			}
		}
		check("while one is open")
		l.closed("c1", 90*time.Second)
		check("when both are closed")
	})
}

func TestABoxIsBilledToItsTenant(t *testing.T) {
	now := time.Now()
	l := testLedger(Bill{})
	l.stopped(fleet.Status{Box: "acme/one", Server: "one", State: fleet.Stopped, Started: now, Stopped: now.Add(2 * time.Minute)})
	running := []fleet.Status{
		{Box: "acme/one", Server: "one", State: fleet.Running, Started: now.Add(-time.Second)},
		{Box: "acme/one", Server: "one", State: fleet.Stopped, Started: now, Stopped: now.Add(time.Hour)}, // was billed when it stopped
	}
	for range 2 { // to look does not bill again
		b := l.bill(now, running)
		want := meter.Units{VCPUSeconds: 180, TaskGBSeconds: 180}
		if d := cmp.Diff(map[Owner]meter.Units{{Server: "one", Tenant: "acme"}: want}, sharesOf(b)); d != "" {
			t.Errorf("shares (-want +got):\n%s", d)
		}
		if d := cmp.Diff(want, b.Total()); d != "" {
			t.Errorf("total (-want +got):\n%s", d)
		}
	}
}

func TestABillGoesOnWhereTheLastRunEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), UsageFile)
	first := testLedger(Bill{Since: time.Unix(1000, 0).UTC()})
	first.line(spentLine)
	if err := writeBill(path, first.bill(time.Unix(2000, 0).UTC(), nil)); err != nil {
		t.Fatal(err)
	}
	saved, err := readBill(path)
	if err != nil {
		t.Fatal(err)
	}
	second := testLedger(saved)
	second.line(spentLine)
	b := second.bill(time.Unix(3000, 0).UTC(), nil)
	if d := cmp.Diff(meter.Units{Invocations: 2, ReadUnits: 4, WriteUnits: 6}, b.Total()); d != "" {
		t.Errorf("total (-want +got):\n%s", d)
	}
	if got := sharesOf(b)[Owner{"one", "acme", "s1"}].Invocations; got != 2 || !b.Since.Equal(time.Unix(1000, 0)) {
		t.Errorf("%v invocations since %v", got, b.Since)
	}
}

func TestABillThatCannotBeReadIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), UsageFile)
	if b, err := readBill(path); err != nil || !b.Since.IsZero() {
		t.Errorf("without a file: %+v, %v", b, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readBill(path); err == nil {
		t.Error("half a file is taken")
	}
}

func TestALedgerHasABound(t *testing.T) {
	l := testLedger(Bill{})
	for n := range maxOwners + 5 {
		l.mu.Lock()
		l.give(Owner{"one", "acme", strconv.Itoa(n)}, meter.Units{Invocations: 1})
		l.mu.Unlock()
	}
	if len(l.shares) != maxOwners+1 || l.shares[Owner{Server: "one", Tenant: "acme"}].Invocations != 5 {
		t.Errorf("%d owners; what is over the bound has %+v", len(l.shares), l.shares[Owner{Server: "one", Tenant: "acme"}])
	}
}
