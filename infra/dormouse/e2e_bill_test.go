//go:build e2e

package main_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/infra/local"
)

// usage asks the emulator for its counters.
func (m *machine) usage() local.Usage {
	m.t.Helper()
	u, up, err := local.ReadUsage(m.t.Context(), m.data)
	if err != nil || !up {
		m.t.Fatalf("the machine does not tell its counters: up %t, %v", up, err)
	}
	return u
}

// counted is how many messages the WebSocket APIs have counted.
type counted struct{ RelayIn, RelayOut, SocketIn, SocketOut int64 }

// counted returns the counters when nothing is under way any more: every function
// process is idle, and a second look finds the same.
func (m *machine) counted() (c counted) {
	m.t.Helper()
	m.eventually(5*time.Second, "the counters stand still", func() bool {
		for _, f := range m.ps().Functions {
			if f.State != "idle" {
				return false
			}
		}
		before, u := c, m.usage()
		c = counted{u.Relay.MessagesIn, u.Relay.MessagesOut, u.Socket.MessagesIn, u.Socket.MessagesOut}
		return c == before
	})
	return c
}

// costs is what one call of a client of an awake box adds. A call that took so long
// that the runner had to give a sign of life is made again.
func (m *machine) costs(call func() error) (c counted) {
	m.t.Helper()
	for range 5 {
		before, began := m.counted(), time.Now()
		if err := call(); err != nil {
			m.t.Fatal(err)
		}
		took, after := time.Since(began), m.counted()
		c = counted{
			after.RelayIn - before.RelayIn, after.RelayOut - before.RelayOut,
			after.SocketIn - before.SocketIn, after.SocketOut - before.SocketOut,
		}
		if took < 700*time.Millisecond {
			break
		}
	}
	return c
}

func TestE2ECallOverHTTPCostsTwoMessagesAndAnAck(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start()
	c := m.session("one")
	c.text("count", "")
	got := m.costs(func() error {
		_, err := c.call("count", "")
		return err
	})
	// In: the events. Out: the deliver and the ack.
	if d := cmp.Diff(counted{RelayIn: 1, RelayOut: 2}, got); d != "" {
		t.Errorf("messages of one call (-want +got):\n%s", d)
	}
}

func TestE2EUsageTellsWhatAMachineWouldCost(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start(sleepy()...)
	m.session("one").text("count", "")
	m.asleep()
	u := m.usage()
	if u.REST.Requests != 3 || u.REST.Billed != 3 || u.REST.Bytes == 0 {
		t.Errorf("three requests are counted as %+v", u.REST)
	}
	if u.Relay.Connections == 0 || u.Relay.Open != 0 || u.Relay.ConnectedTime < idle {
		t.Errorf("the connection of a box that has said bye is counted as %+v", u.Relay)
	}
	if b := u.Boxes["one"]; b.Tasks != 1 || b.Time != time.Minute {
		t.Errorf("a box of some seconds is counted as %+v, want one minute", b)
	}
	requests := map[string]int{}
	for _, f := range u.Functions {
		requests[f.Name] = f.Requests
		if (f.Requests > 0) != (f.GBSeconds() > 0) || f.Failed > 0 || f.Throttled > 0 {
			t.Errorf("function %s is counted as %+v", f.Name, f)
		}
	}
	if requests["http"] != 3 || int64(requests["relay"]) != u.Relay.Invocations || requests["socket"] != 0 {
		t.Errorf("invocations are %v", requests)
	}
	if u.Events.Lost > 0 {
		t.Errorf("events are counted as %+v", u.Events)
	}
}
