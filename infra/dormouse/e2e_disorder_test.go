//go:build e2e

package dormouse_test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// disorder returns the flags of a gateway that handles messages in random order.
func disorder() []string { return []string{"--disorder", "50ms"} }

// The runner's connection is closed every second, while the gateway handles messages in
// random order. The process stays the same, and its messages arrive whole, once and in
// order.
func TestE2ERelayIsCutEverySecond(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start(append(disorder(), "--socket-life", "1s")...)
	c := m.session("one")
	before := c.whoami()
	messages, err := c.call("work", `{"before":200,"pause":20}`)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(steps(200, string(messages[len(messages)-1].ID)), ended(messages)); d != "" {
		t.Errorf("messages of the call (-want +got):\n%s", d)
	}
	for n := 1; n <= 20; n++ {
		if got := c.text("count", ""); got != fmt.Sprint(n) {
			t.Fatalf("call %d: the counter says %s", n, got)
		}
	}
	if after := c.whoami(); after.PID != before.PID {
		t.Errorf("the process was %d and is %d", before.PID, after.PID)
	}
	if u := m.usage(); u.Relay.Connections < 4 {
		t.Errorf("the runner connected %d times only", u.Relay.Connections)
	}
}

// This client does not wait for answers. The gateway may pass on its messages in any
// order, so all may overtake the handshake.
func TestE2ESocketClientDoesNotWait(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start(disorder()...)
	for range 5 {
		s := m.dial("one", url.Values{})
		s.say(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":` + params + `}`)
		s.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		s.say(`{"jsonrpc":"2.0","id":"list","method":"tools/list"}`)
		id := s.ask("echo", `{"text":"x"}`)
		open := map[string]bool{`"init"`: true, `"list"`: true, id: true}
		for len(open) > 0 {
			got, err := s.hear()
			if err != nil {
				t.Fatalf("%v are not answered: %v", open, err)
			}
			if !open[string(got.ID)] || got.Result == nil {
				t.Fatalf("got %s while %v are not answered", got.Raw, open)
			}
			delete(open, string(got.ID))
		}
		_ = s.conn.CloseNow()
	}
}
