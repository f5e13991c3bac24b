//go:build e2e

package dormouse_test

import (
	"math"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// billReport is the output of dormouse bill --json.
type billReport struct {
	Charges []struct {
		Unit  string
		Count float64
	}
	Owners []struct {
		Name, Server string
		Units        map[string]float64
	}
}

func (b billReport) count(unit string) float64 {
	for _, c := range b.Charges {
		if c.Unit == unit {
			return c.Count
		}
	}
	return 0
}

func (b billReport) requests() map[string]float64 {
	of := map[string]float64{}
	for _, o := range b.Owners {
		if o.Name != "" {
			of[o.Server+" "+o.Name] = o.Units["requests"]
		}
	}
	return of
}

// What the functions, the gateway and a box with a runner have used is on the bill of the session
// that used it.
func TestE2EBillSaysWhatEachSessionHasCost(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil, "two": nil}).withRunners()
	m.start(sleepy()...)
	busy, calm := m.session("one"), m.session("two")
	for range 5 {
		busy.text("count", "")
	}
	calm.text("count", "")
	m.asleep()
	m.interrupt() // the bill is in the folder
	var b, byPrincipal billReport
	m.printed(&b, "bill", "--json", "--by", "session")
	commontest.Same(t, map[string]float64{"one " + busy.session: 7, "two " + calm.session: 3}, b.requests())
	m.printed(&byPrincipal, "bill", "--json", "--by", "principal")
	commontest.Same(t, map[string]float64{" local": 10}, byPrincipal.requests())
	// Each box ran for some seconds and is billed for a minute.
	commontest.EqualIn(t, "the vCPU seconds are", 2*60*meter.DefaultBox().VCPUs, b.count("vcpu_seconds"))
	for _, unit := range []string{"requests", "messages", "read_units", "write_units", "vcpu_seconds", "connection_minutes"} {
		owned := 0.0
		for _, o := range b.Owners {
			owned += o.Units[unit]
		}
		if want := b.count(unit); want == 0 || math.Abs(owned-want) > 1e-6 {
			t.Errorf("owners have %v %s together, the bill has %v", owned, unit, want)
		}
	}
}
