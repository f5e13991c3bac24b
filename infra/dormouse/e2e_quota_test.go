//go:build e2e

package dormouse_test

import (
	"math"
	"sync"
	"testing"
)

// quotasReport is the output of dormouse quotas --json.
type quotasReport []struct {
	Tenant string
	USD    float64
}

func (m *machine) quotas() (q quotasReport) {
	m.t.Helper()
	m.printed(&q, "quotas", "--json", "--tenant", "local", "--servers", m.servers)
	if len(q) != 1 {
		m.t.Fatalf("dormouse quotas prints %+v", q)
	}
	return q
}

// The account of a tenant, which caps go by, and the bill say the same of calls
// that wake boxes, after boxes have gone to sleep several times. The account has neither
// open connections nor stored data.
func TestE2EAccountOfATenantAgreesWithTheBill(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil, "two": nil})
	m.ours(`{"limits": {"month_usd": 1000}}`)
	m.start(sleepy()...)
	const rounds, calls = 2, 250
	for range rounds {
		var all sync.WaitGroup
		for n := range 4 {
			c := m.session([]string{"one", "two"}[n%2])
			all.Go(func() {
				for i := range calls {
					tool := []string{"count", "whoami"}[i%2]
					if _, err := c.call(tool, ""); err != nil {
						t.Errorf("call %d: %v", i, err)
						return
					}
				}
			})
		}
		all.Wait()
		m.asleep()
	}
	m.interrupt() // the functions write down what they have counted
	billed, of := 0.0, m.quotas()
	for _, o := range m.bill("tenant").Owners {
		if o.Name == "local" {
			billed += o.USD
		}
	}
	off := 0.02 * billed
	if m.programs {
		off += 4 * 0.01 // a cent for each function that was stopped without a notice
	}
	if got := of[0].USD; math.Abs(got-billed) > off {
		t.Errorf("the account has $%.6f, the bill $%.6f", got, billed)
	}
	if billed < 0.0005 {
		t.Errorf("only $%.6f are billed", billed)
	}
	t.Logf("account $%.6f, bill $%.6f", of[0].USD, billed)
}
