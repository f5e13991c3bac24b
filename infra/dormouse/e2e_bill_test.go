//go:build e2e

package dormouse_test

import (
	"math"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// usage returns the counters of the WebSocket APIs: for runners, and for clients.
func (m *machine) usage() (u struct{ Relay, Socket api.Gateway }) {
	m.t.Helper()
	gateways := m.ps().Gateways
	if len(gateways) != 2 {
		m.t.Fatalf("the machine counts %+v", gateways)
	}
	u.Relay, u.Socket = gateways[0], gateways[1]
	return u
}

// billReport is the output of dormouse bill --json.
type billReport struct {
	USD     float64
	Charges []struct {
		Unit  string
		Count float64
		USD   float64
	}
	Owners []struct {
		Name, Server, Tenant string
		USD                  float64
		Units                map[string]float64
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

func (m *machine) bill(by string) (b billReport) {
	m.t.Helper()
	m.printed(&b, "bill", "--json", "--by", by)
	return b
}

func TestE2EBillSaysWhatEachSessionHasCost(t *testing.T) {
	t.Parallel()
	for name, relay := range map[string]bool{"inside": false, "over the relay": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, servers{"one": nil, "two": nil})
			m.runner = relay
			testBill(t, m, relay)
		})
	}
}

func testBill(t *testing.T, m *machine, relay bool) {
	m.start(sleepy()...)
	busy, calm := m.session("one"), m.session("two")
	for range 5 {
		busy.text("count", "")
	}
	calm.text("count", "")
	m.asleep()
	u, b := m.usage(), m.bill("session")
	if got, want := b.count("messages"), float64(u.Relay.MessagesIn+u.Relay.MessagesOut); relay && got != want {
		t.Errorf("%v messages are billed, %v were counted", got, want)
	}
	if got := b.count("requests"); got != 10 {
		t.Errorf("%v requests are billed, want 10", got)
	}
	// Each box ran for some seconds and is billed for a minute.
	if got, want := b.count("vcpu_seconds"), 2*60*meter.DefaultBox().VCPUs; got != want {
		t.Errorf("%v vCPU seconds are billed, want %v", got, want)
	}
	if b.count("invocations") < 10 || b.count("gb_seconds") <= 0 {
		t.Errorf("the bill has no functions: %+v", b)
	}
	if relay && (u.Relay.Connections == 0 || u.Relay.Open != 0 || u.Relay.ConnectedSeconds < idle.Seconds()) {
		t.Errorf("the connections of boxes that have said bye are counted as %+v", u.Relay)
	}
	owned, requests := map[string]float64{}, map[string]float64{}
	for _, o := range b.Owners {
		for unit, n := range o.Units {
			owned[unit] += n
		}
		requests[o.Server+" "+o.Name] = o.Units["requests"]
	}
	if requests["one "+busy.session] != 7 || requests["two "+calm.session] != 3 {
		t.Errorf("requests by session are %v", requests)
	}
	for _, unit := range []string{"requests", "messages", "read_units", "write_units", "vcpu_seconds", "connection_minutes"} {
		if got, want := owned[unit], b.count(unit); want == 0 || math.Abs(got-want) > 1e-6 {
			t.Errorf("owners have %v %s together, the bill has %v", got, unit, want)
		}
	}
	for _, o := range m.bill("principal").Owners {
		if o.Name == "local" && o.Units["requests"] == 10 && o.Units["messages"] > 0 {
			owned["of local"]++
		}
	}
	if owned["of local"] != 1 {
		t.Errorf("the bill by principal is %+v", m.bill("principal").Owners)
	}
	ofTool := 0.0
	for _, o := range m.bill("tool").Owners {
		if o.Name == "count" && o.Server == "one" && o.Units["messages"] > 0 && o.Units["vcpu_seconds"] == 0 {
			ofTool = o.Units["requests"]
		}
	}
	if ofTool == 0 {
		t.Errorf("the bill by tool is %+v", m.bill("tool").Owners)
	}
	m.interrupt()
	after := m.bill("server")
	if after.USD < b.USD || len(after.Owners) < 2 {
		t.Errorf("when dormouse run has ended, the bill is %+v; it was %v before", after, b.USD)
	}
}
