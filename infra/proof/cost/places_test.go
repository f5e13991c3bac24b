package main

import (
	"math"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// What a box costs by the time that it is awake, within a tenth of the figures by
// which the places for boxes were compared.
func TestABoxCostsByItsPlace(t *testing.T) {
	want := map[string][]float64{ // for a million, by idle time
		"Fargate": {248, 248, 372, 620}, "Lambda 512 MB, a new": {112, 179, 479, 879}, "Lambda 512 MB, the same": {36, 103, 403, 803},
		"Lambda 1 GB": {214, 348, 948, 1748},
	}
	for _, p := range places(meter.Usual()) {
		for name, figures := range want {
			if !strings.HasPrefix(p.name, name) {
				continue
			}
			for i, idle := range idles() {
				if got := p.box(meter.Published(), p.start+idle) * 1e6; math.Abs(got-figures[i]) > figures[i]/10 {
					t.Errorf("%s, idle %s: $%.0f, want about $%.0f", p.name, idle, got, figures[i])
				}
			}
			delete(want, name)
			break
		}
	}
	if len(want) > 0 {
		t.Errorf("places without a price: %v", want)
	}
}
