package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/meter/metertest"
)

// work describes the calls of a month, which are split into sessions. The calls of a session follow
// one another, and so keep a box awake.
type work struct {
	calls  int           // how many calls a session makes
	talk   time.Duration // from the first message of a session to its last
	toolMS string        // how long a call takes
}

func usualWork() work { return work{calls: 20, talk: 5 * time.Minute, toolMS: "50"} }

const hoursOfMonth = 730

// months prints the cost of a month of calls.
func (t tables) months() error {
	w := usualWork()
	http, err := t.session(w, false)
	if err != nil {
		return err
	}
	socket, err := t.session(w, true)
	if err != nil {
		return err
	}
	socket = socket.Plus(meter.Units{ConnectionMinutes: w.talk.Minutes()})
	box := metertest.Awake(t.habits, t.habits.BoxStart+w.talk+t.habits.Idle)
	gateway, object := supergateway(), mcpAgent()
	t.say("\nA month: sessions of %d calls in %v, each call %s ms of a tool, logs included; a box awake for that, its start and %v, for one session or for ten at a time.\n",
		w.calls, w.talk, w.toolMS, t.habits.Idle)
	t.say("The stack by itself, in the first two columns: %d metrics under an alarm, %d dashboards, and a sweep every %v. supergateway: as many sessions at a time as come in five times the mean rate, each kept for %v. Durable Objects: %s, %s, the plan of $%.0f included.\n",
		t.stack.alarms, t.stack.dashboards, sweepEvery, w.talk, object.Source, object.Date, object.Month)
	t.say("Not in it: with Metrics=on up to %s a server, for %d metrics that are written in each hour, and an alarm on the time of a wake; with AWS's empty answers as messages, if it sends them, %s more for a million calls over WebSocket; backups of the table, images, and requests to S3.\n",
		dollars(serverMetrics*metricMonth), serverMetrics, dollars(t.prices.Cost(meter.Units{Messages: 1e6})))
	month := []float64{0, 1e3, 1e4, 1e5, 1e6, 1e8}
	t.head("calls a month", "over HTTP", "over WebSocket", "boxes, one a session", "HTTP and these", "boxes, ten sessions in one", "HTTP and these")
	for _, calls := range month {
		sessions := calls / float64(w.calls)
		endpoint, boxes := t.fixed()+t.prices.Cost(http)*sessions, t.prices.Cost(box)*sessions
		t.row(count(calls), endpoint, t.fixed()+t.prices.Cost(socket)*sessions, boxes, endpoint+boxes, boxes/10, endpoint+boxes/10)
	}
	t.head("calls a month", "supergateway, always on", "Durable Objects")
	for _, calls := range month {
		peak := 5 * calls / float64(w.calls) * w.talk.Hours() / hoursOfMonth
		t.row(count(calls), gateway.Cost(t.prices, peak, hoursOfMonth*time.Hour, meter.GB(int64(calls)*1000)),
			object.Month+object.Call(50*time.Millisecond)*calls)
	}
	return nil
}

// session returns what one session uses for its beginning, for its calls, of which the first wakes the
// box, and for the box's last message. The time of the box is not in it.
func (t tables) session(w work, socket bool) (u meter.Units, err error) {
	add := func(name string, times float64) {
		o, e := t.find(name)
		if e != nil {
			err = e
		}
		if socket && o.Requests > 0 { // the request comes as a message, and so does the answer unless the request is a notification
			o.Requests, o.Messages = 0, o.Messages+2
			if strings.HasPrefix(name, "notifications/") {
				o.Messages--
			}
		}
		u = u.Plus(o.Units(t.habits).Times(times))
	}
	over := "HTTP"
	if socket {
		over = "WebSocket"
		add("WebSocket: connect", 1)
		add("WebSocket: disconnect", 1)
	}
	for _, name := range []string{
		"initialize, from the handshake record", "notifications/initialized", "tools/list, from the handshake record",
		"the first of a session, that wakes a box", "a box falls asleep",
	} {
		add(name, 1)
	}
	add(over+": tools/call, "+w.toolMS+" ms", float64(w.calls-1))
	return u, err
}

// fixed returns the cost of the stack itself for a month.
func (t tables) fixed() float64 {
	sweep := metertest.Operation{Invocations: 1, Trips: 1, ReadUnits: 1}
	return t.stack.month() + t.prices.Cost(sweep.Units(t.habits))*float64(hoursOfMonth*time.Hour)/float64(sweepEvery)
}

func count(n float64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.0f million", n/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.0f thousand", n/1e3)
	default:
		return fmt.Sprintf("%.0f", n)
	}
}
