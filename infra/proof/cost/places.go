package main

import (
	"fmt"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// place is one way to run a box, with the time and the cost of its start. The times are
// assumptions: they are not measured on AWS.
type place struct {
	name  string
	start time.Duration // until the first result
	box   func(p meter.Prices, awake time.Duration) float64
}

// newTenantGB is a price in US dollars that package meter does not have. Source: the price
// list of Lambda (2026-09-19, us-east-1, arm64).
const newTenantGB = 0.000133333 // for a new environment with tenant isolation, for each GB of its memory

func places(h meter.Habits) []place {
	lambda := func(mb float64, cold bool) func(meter.Prices, time.Duration) float64 {
		return func(p meter.Prices, awake time.Duration) float64 {
			usd := p.Cost(meter.Units{Invocations: 1, GBSeconds: awake.Seconds() * mb / 1024})
			if cold {
				usd += newTenantGB * mb / 1024
			}
			return usd
		}
	}
	return []place{
		{fmt.Sprintf("Fargate, %v vCPU, %.0f MB", h.Box.VCPUs, h.Box.MemoryMB), h.BoxStart, func(p meter.Prices, awake time.Duration) float64 {
			return p.Cost(meter.Task(awake.Seconds(), h.Box))
		}},
		{"Lambda 512 MB, a new environment", 1800 * time.Millisecond, lambda(512, true)},
		{"Lambda 512 MB, the same environment", 400 * time.Millisecond, lambda(512, false)},
		{"Lambda 1 GB, a new environment", time.Second, lambda(1024, true)},
	}
}

func idles() []time.Duration {
	return []time.Duration{5 * time.Second, 15 * time.Second, time.Minute, 2 * time.Minute}
}

// places prints the cost of a million calls, each of which wakes a box: the box, for each idle time, and
// the functions, API Gateway and the store until the box has started.
func (t tables) places() error {
	wake, err := t.find("tools/call, that wakes a box")
	if err != nil {
		return err
	}
	t.say("\nA million calls that each wake a box, without logs. Its start is assumed; a box of Lambda has no address. The functions wait for the start.\n")
	cells := []string{"place", "start", "functions and store"}
	for _, idle := range idles() {
		cells = append(cells, "box, idle "+idle.String())
	}
	t.head(cells...)
	for _, p := range places(t.habits) {
		h := t.habits
		h.BoxStart = p.start
		u := wake.Units(h).Times(1e6)
		u.LogGB = 0
		row := []any{p.name, p.start, t.prices.Cost(u)}
		for _, idle := range idles() {
			row = append(row, p.box(t.prices, p.start+idle)*1e6)
		}
		t.row(row...)
	}
	return nil
}
