package main

import (
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

func TestTheDocumentsSayWhatTheStackCostsByItself(t *testing.T) {
	text, err := os.ReadFile("../../../template.yaml")
	commontest.OK(t, err)
	page, err := os.ReadFile("../../../docs/costs.md")
	commontest.OK(t, err)
	tb := tables{prices: meter.Published(), habits: meter.Usual(), stack: stackOf(string(text))}
	month := dollars(tb.fixed())
	for _, want := range []string{"| 0 | " + month + " | " + month + " |", "The " + month + " pay for a sweep"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/costs.md does not say %q", want)
		}
	}
}

// The page has what AWS publishes, copied by hand. Each price that the command uses has a
// row with the same value, and the command uses each row.
func TestEveryPriceIsARowOfTheList(t *testing.T) {
	page, err := os.ReadFile("../../../docs/costs.md")
	commontest.OK(t, err)
	used := map[string]float64{
		"alarmMonth": alarmMonth, "dashboardMonth": dashboardMonth, "metricMonth": metricMonth,
		"newTenantGB": newTenantGB,
	}
	for unit, price := range meter.Published().USD {
		used[unit] = price.USD / price.For
	}
	listed := map[string]bool{}
	number := func(text string) float64 {
		n, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
		commontest.OK(t, err)
		return n
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([0-9.]+) \\| ([0-9,]+) \\| .+ \\|$").FindAllStringSubmatch(string(page), -1) {
		listed[row[1]] = true
		value, ok := used[row[1]]
		if want := number(row[2]) / number(row[3]); !ok || math.Abs(value-want) > 1e-9*want {
			t.Errorf("%s: the tables calculate with %v (%v), the list has %v", row[1], value, ok, want)
		}
	}
	for name := range used {
		if !listed[name] {
			t.Errorf("%s has no row in docs/costs.md", name)
		}
	}
}
