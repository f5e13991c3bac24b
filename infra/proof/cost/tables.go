package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/meter/metertest"
)

// tables prints the costs of operations, of silent sessions, and of months of calls.
type tables struct {
	out        io.Writer
	prices     meter.Prices
	habits     meter.Habits
	operations []metertest.Operation
	stack      stack
}

// stack counts the resources of a template that cost the same each month even without
// messages.
type stack struct{ alarms, dashboards int }

// Prices for a month, in US dollars, without free tiers.
const (
	alarmMonth     = 0.10
	dashboardMonth = 3.00
	metricMonth    = 0.30 // AWS bills a part of it for each hour in which the metric is written
)

const (
	sweepEvery    = 5 * time.Minute // the schedule of template.yaml
	serverMetrics = 10              // about how many metrics a server has with Metrics=on
)

// stackOf counts the alarms and dashboards in a template that have no condition.
func stackOf(template string) stack {
	has := func(kind string) int {
		kind = "Type: " + kind + "\n"
		return strings.Count(template, kind) - strings.Count(template, kind+"    Condition:")
	}
	return stack{has("AWS::CloudWatch::Alarm"), has("AWS::CloudWatch::Dashboard")}
}

func (s stack) month() float64 {
	return float64(s.alarms)*alarmMonth + float64(s.dashboards)*dashboardMonth
}

func (t tables) print() error {
	for _, table := range []func() error{t.assumptions, t.perOperation, t.silence, t.months, t.places} {
		if err := table(); err != nil {
			return err
		}
	}
	return nil
}

func (t tables) say(format string, args ...any) { _, _ = fmt.Fprintf(t.out, format, args...) }

func (t tables) row(cells ...any) {
	for _, c := range cells {
		if usd, ok := c.(float64); ok {
			c = dollars(usd)
		}
		t.say("| %v ", c)
	}
	t.say("|\n")
}

func (t tables) head(cells ...string) {
	t.say("\n| %s |\n|%s\n", strings.Join(cells, " | "), strings.Repeat("---|", len(cells)))
}

func dollars(usd float64) string {
	switch {
	case usd == 0:
		return "–"
	case usd < 0.005:
		return fmt.Sprintf("$%.1g", usd)
	case usd < 1000:
		return fmt.Sprintf("$%.2f", usd)
	default:
		return fmt.Sprintf("$%.0f", usd)
	}
}

func (t tables) find(name string) (metertest.Operation, error) {
	for _, o := range t.operations {
		if o.Name == name {
			return o, nil
		}
	}
	return metertest.Operation{}, fmt.Errorf("%q was not counted; run make bench-cost", name)
}

func (t tables) assumptions() error {
	h := t.habits
	t.say("Prices of %s, %s (%s).\n", t.prices.Date, t.prices.Region, t.prices.Source)
	t.say("A function has %.0f MB and works %v in an invocation, %v in a round trip to DynamoDB and %v in a post, and waits for what it waits for.\n",
		h.MemoryMB, h.Own, h.Trip, h.Post)
	t.say("An invocation leaves %d bytes of log, with Lambda's own lines. A box has %v vCPU, %.0f MB and a public address, and starts in %v.\n",
		h.LogBytes, h.Box.VCPUs, h.Box.MemoryMB, h.BoxStart)
	return nil
}

// perOperation prints the cost of a million of each operation, without the time of boxes.
func (t tables) perOperation() error {
	t.head("a million of", "API Gateway", "Lambda", "DynamoDB", "traffic", "together", "logs")
	for _, o := range t.operations {
		u := o.Units(t.habits).Times(1e6)
		if o.Invocations == 0 {
			continue
		}
		by := t.byService(u)
		logs := by["logs"]
		t.row(o.Name, by["gateway"], by["lambda"], by["dynamodb"], by["traffic"], t.prices.Cost(u)-logs, logs)
	}
	return nil
}

func (t tables) byService(u meter.Units) map[string]float64 {
	service := map[string]string{
		"invocations": "lambda", "gb_seconds": "lambda", "requests": "gateway", "messages": "gateway", "connection_minutes": "gateway",
		"read_units": "dynamodb", "write_units": "dynamodb", "stored_gb_months": "dynamodb", "log_gb": "logs", "out_gb": "traffic",
		"vcpu_seconds": "boxes", "task_gb_seconds": "boxes", "address_seconds": "boxes",
	}
	by := map[string]float64{}
	for _, c := range t.prices.Bill(u) {
		by[service[c.Unit]] += c.USD
	}
	return by
}

// Intervals of clients that listen: by polling, over a WebSocket, and on a held stream.
const (
	listenEvery = 61 * time.Second // the poll is held for a second, and the client comes back after sixty
	pingEvery   = 9 * time.Minute
	holdFor     = 14 * time.Minute // how long a stream lasts if its client keeps it; the client then opens another
)

// silence prints the cost of a thousand sessions that send nothing for a day.
func (t tables) silence() error {
	listen, err := t.find("GET of an idle listener, held for 1 s")
	if err != nil {
		return err
	}
	ping, err := t.find("WebSocket: ping")
	if err != nil {
		return err
	}
	held, err := t.find("a stream, held for 14 minutes in vain")
	if err != nil {
		return err
	}
	const sessions, day = 1000, 24 * time.Hour
	quiet := metertest.Silent(t.habits, sessions, metertest.Operation{}, 0)
	listening := metertest.Silent(t.habits, sessions, listen, listenEvery)
	connected := metertest.Silent(t.habits, sessions, ping, pingEvery).Plus(meter.Units{ConnectionMinutes: sessions * day.Minutes()})
	gateway, object := supergateway(), mcpAgent()
	t.head("a thousand silent sessions, a day", "")
	t.row("Dormouse, a client that does not listen", t.prices.Cost(quiet))
	t.row("Dormouse, each client polls for what servers say by themselves (once in "+listenEvery.String()+")", t.prices.Cost(listening))
	t.row("Dormouse, each on a stream that a function holds (HTTP+SSE, subscriptions/listen)", t.prices.Cost(metertest.Silent(t.habits, sessions, held, holdFor)))
	t.row("Dormouse, each on an open WebSocket with a ping every "+pingEvery.String(), t.prices.Cost(connected))
	t.row(fmt.Sprintf("supergateway on Fargate, always on, %.0f tasks of %v vCPU and %.0f MB (a server of %.0f MB a session), load balancer",
		gateway.Tasks(sessions), gateway.Box.VCPUs, gateway.Box.MemoryMB, gateway.SessionMB), gateway.Cost(t.prices, sessions, day, 0))
	t.row("a Durable Object a session, hibernating", object.Silent(sessions))
	return nil
}
