package local

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

func TestTaskMeterBillsAsFargateDoes(t *testing.T) {
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	task := func(server string, ran time.Duration) fleet.Status {
		return fleet.Status{Server: server, State: fleet.Stopped, Started: start, Stopped: start.Add(ran)}
	}
	var m taskMeter
	m.add(task("a", time.Second)) // a minute at least
	m.add(task("a", 90*time.Second))
	m.add(task("b", time.Hour+time.Millisecond)) // whole seconds
	running := []fleet.Status{{Server: "a", State: fleet.Running, Started: start}, task("b", time.Hour)}
	want := map[string]BoxUsage{
		"a": {Tasks: 3, Time: time.Minute + 90*time.Second + 2*time.Minute},
		"b": {Tasks: 1, Time: time.Hour + time.Second},
	}
	if d := cmp.Diff(want, m.usage(running, start.Add(2*time.Minute))); d != "" {
		t.Errorf("usage (-want +got):\n%s", d)
	}
	if d := cmp.Diff(want["b"], m.usage(nil, start)["b"]); d != "" {
		t.Errorf("a snapshot changed the meter (-want +got):\n%s", d)
	}
}
