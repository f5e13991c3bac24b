//go:build e2e

package dormouse_test

import (
	"strings"
	"testing"
	"time"
)

// More sessions of one server than one box has processes for run in two boxes, each in a
// process of its own that is not started anew.
func TestE2ESessionsOfOneServerSpreadOverBoxes(t *testing.T) {
	m := newMachine(t, servers{"one": nil})
	m.ours(`{"limits": {"boxes": 2}}`)
	m.start("--idle", "10m")
	const sessions = 300
	count := func(c *client, want string) {
		t.Helper()
		if got := c.text("count", ""); got != want {
			t.Fatalf("a process that was asked %s times says %s", want, got)
		}
	}
	all := make([]*client, sessions)
	for i := range all {
		if i == 256 {
			m.awaitLine(m.log, time.Minute, "the first box is full", func(line string) bool { return strings.Contains(line, `"phase":"full"`) })
		}
		all[i] = m.session("one")
		count(all[i], "1")
	}
	for _, c := range all {
		count(c, "2")
	}
	in := map[string]int{}
	for _, p := range m.ps().Processes {
		in[p.Box]++
	}
	if first, second := in["local/one"], in["local/one@1"]; len(in) != 2 || first != 256 || second != sessions-256 {
		t.Errorf("the processes run in %v", in)
	}
}
