// Package metertest computes what operations would cost, for cost tables and their tests.
package metertest

import (
	"time"

	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// Operation has the counts of one execution of an operation.
type Operation struct {
	Name        string
	Requests    int     // of the REST API
	Messages    int     // messages of WebSocket APIs, both ways, none over 32 KB
	Invocations int     // of Lambda functions
	Trips       int     // round trips to the store, without waits
	Posts       int     // to connections
	ReadUnits   float64 // without waits
	WriteUnits  float64
	Waits       float64       // requests of waits; each costs at least one read unit, even if it finds nothing
	WaitUnits   float64       // what the waits consumed, if that is more than Waits
	Held        time.Duration // how long invocations wait, apart from round trips
	Wakes       int           // boxes that the operation waits for
	OutBytes    int
}

// Units returns the units of the operation, without the time of boxes. Lambda rounds each
// invocation up to a millisecond.
func (o Operation) Units(h meter.Habits) meter.Units {
	busy := time.Duration(o.Invocations)*(h.Own+time.Millisecond/2) + time.Duration(o.Trips)*h.Trip + time.Duration(o.Posts)*h.Post +
		o.Held + time.Duration(o.Wakes)*h.BoxStart
	waits := max(o.Waits, o.WaitUnits) + float64(o.Wakes*meter.Polls(h.BoxStart))
	return meter.Units{
		Invocations: float64(o.Invocations), Requests: float64(o.Requests), Messages: float64(o.Messages),
		GBSeconds: busy.Seconds() * h.MemoryMB / 1024, ReadUnits: o.ReadUnits + waits, WriteUnits: o.WriteUnits,
		LogGB: meter.GB(int64(o.Invocations * h.LogBytes)), OutGB: meter.GB(int64(o.OutBytes)),
	}
}

// Day and Month are the periods of the cost tables.
const (
	Day   = 24 * time.Hour
	Month = 730 * time.Hour
)

// Silent returns the units of sessions that send nothing for a day. interval is the time between
// two polls; it is zero for a client that does not listen.
func Silent(h meter.Habits, sessions int, poll Operation, interval time.Duration) meter.Units {
	u := meter.Units{StoredGBMonths: meter.GB(int64(h.Stored)) * Day.Hours() / Month.Hours()}
	if interval > 0 {
		u = u.Plus(poll.Units(h).Times(float64(Day) / float64(interval)))
	}
	return u.Times(float64(sessions))
}

// Awake returns the units of a box that is awake for the duration span.
func Awake(h meter.Habits, span time.Duration) meter.Units {
	return meter.Task(span.Seconds(), h.Box)
}
