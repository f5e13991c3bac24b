package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/meter/metertest"
)

// counted returns the operations of which the months and the silence consist, with one
// message each.
func counted() (all []metertest.Operation) {
	for _, name := range []string{
		"HTTP: tools/call, 50 ms", "WebSocket: tools/call, 50 ms", "initialize, from the handshake record", "notifications/initialized",
		"tools/list, from the handshake record", "WebSocket: connect", "WebSocket: disconnect", "WebSocket: ping",
		"the first of a session, that wakes a box", "tools/call, that wakes a box", "a box falls asleep", "GET of an idle listener, held for 1 s", "a stream, held for 14 minutes in vain",
	} {
		all = append(all, metertest.Operation{Name: name, Invocations: 1, Messages: 1})
	}
	return all
}

// printed returns the tables for these counts.
func printed(t *testing.T, operations []metertest.Operation) (string, error) {
	t.Helper()
	var b bytes.Buffer
	tb := tables{out: &b, prices: meter.Published(), habits: meter.Usual(), operations: operations, stack: stack{alarms: 10, dashboards: 1}}
	err := tb.print()
	return b.String(), err
}

func TestTablesSayTheirDateAndTheirAssumptions(t *testing.T) {
	text, err := printed(t, counted())
	commontest.OK(t, err)
	for _, want := range []string{meter.Published().Date, mcpAgent().Date, "256 MB", "| 0 |", "| 1 thousand |", "| 10 thousand |", "| 100 thousand |", "| 1 million |", "| 100 million |"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the tables:\n%s", want, text)
		}
	}
}

func TestWithoutCountsThereAreNoTables(t *testing.T) {
	if _, err := printed(t, counted()[1:]); err == nil || !strings.Contains(err.Error(), "make bench-cost") {
		t.Errorf("the error is %v", err)
	}
	if err := run(filepath.Join(t.TempDir(), "none.json"), "", "template.yaml"); err == nil || !strings.Contains(err.Error(), "make bench-cost") {
		t.Errorf("the error is %v", err)
	}
}

func TestTheStackIsCountedInTheTemplate(t *testing.T) {
	text, err := os.ReadFile("../../../template.yaml")
	commontest.OK(t, err)
	if got := stackOf(string(text)); got != (stack{}) {
		t.Errorf("the stack has %+v", got)
	}
}

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

func TestDollarsAreReadable(t *testing.T) {
	for usd, want := range map[float64]string{0: "–", 0.000012: "$1e-05", 0.006: "$0.01", 12.345: "$12.35", 1999.6: "$2000"} {
		if got := dollars(usd); got != want {
			t.Errorf("%v is %s, want %s", usd, got, want)
		}
	}
}

func TestAnAlwaysOnTaskCostsTheSameWithoutCalls(t *testing.T) {
	g := supergateway()
	if got := g.Tasks(0); got != 1 {
		t.Errorf("%v tasks for nobody, want 1", got)
	}
	if a, b := g.Cost(meter.Published(), 0, 24*time.Hour, 0), g.Cost(meter.Published(), 1, 24*time.Hour, 0); a != b || a == 0 {
		t.Errorf("a day costs %v without a session and %v with one", a, b)
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

func TestOwnPricesStandInThePlaceOfThePublished(t *testing.T) {
	p, err := with(meter.Published(), []byte(`{"date":"2027-01-01","usd":{"messages":{"usd":0.5,"for":1000000}}}`))
	commontest.OK(t, err)
	if got := p.Cost(meter.Units{Messages: 1e6, Requests: 1e6}); math.Abs(got-4) > 1e-12 || p.Date != "2027-01-01" || p.Region != "us-east-1" {
		t.Errorf("%v at %+v", got, p)
	}
	if got := meter.Published().Cost(meter.Units{Messages: 1e6}); math.Abs(got-1) > 1e-12 {
		t.Errorf("the published price has become %v", got)
	}
}

func TestPricesThatAreNoneAreRefused(t *testing.T) {
	for name, file := range map[string]string{
		"no JSON":      `{`,
		"no date":      `{"usd":{}}`,
		"unknown unit": `{"date":"2027-01-01","usd":{"cups":{"usd":1,"for":1}}}`,
		"negative":     `{"date":"2027-01-01","usd":{"messages":{"usd":-1,"for":1}}}`,
		"for nothing":  `{"date":"2027-01-01","usd":{"messages":{"usd":1}}}`,
		"misspelt":     `{"date":"2027-01-01","price":{}}`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := with(meter.Published(), []byte(file)); err == nil {
				t.Errorf("%s is taken", name)
			}
		})
	}
}
