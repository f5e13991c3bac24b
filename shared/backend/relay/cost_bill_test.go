package relay_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/meter/metertest"
)

// These tests turn the operations of the cost table, and calls of slower tools, into the
// amounts that AWS bills. infra/proof/cost makes its tables from them.

// countsFile is the file into which TestCountsForTheBill writes its counts.
var countsFile = flag.String("counts", "", "write the counted operations to this file, as JSON")

// billable is an operation, with the facts for its bill that the counts of the relay do
// not give.
type billable struct {
	name string
	operation
	requests int  // requests of the client to the REST API, or
	messages int  // over a WebSocket, both ways
	enters   bool // the client's request is an invocation
	wakes    int
	held     *time.Duration // how long a function waits; nil: as long as the operation takes
	pushes   int            // posts to the client
	bytes    int            // of the answers
}

// answerBytes is the size of the answer to a call, with headers.
const answerBytes = 1000

func billables() []billable {
	var all []billable
	for _, p := range prices() {
		if strings.HasPrefix(p.name, "WebSocket: tools/call") || strings.HasPrefix(p.name, "WebSocket: the same") || p.name == "tools/call, awake box, answered within a second" {
			continue
		}
		b := billable{name: strings.Replace(p.name, "the same", "tools/call", 1), operation: p.operation, enters: true, requests: 1, bytes: answerBytes}
		switch {
		case strings.HasPrefix(p.name, "WebSocket: "):
			b.requests, b.held = 0, new(time.Duration)
			if p.name == "WebSocket: ping" {
				b.messages = 2
			}
		case p.name == "a box falls asleep", p.name == "a fresh process that lists as the one before", strings.HasPrefix(p.name, "a session, a day"):
			b.requests, b.enters, b.bytes, b.held = 0, false, 0, new(time.Duration)
		}
		if strings.Contains(p.up, "hello") {
			b.wakes = 1
		}
		var events int
		if n, _ := fmt.Sscanf(p.name, "resume of %d event", &events); n == 1 {
			b.bytes = max(answerBytes, events*200)
		}
		all = append(all, b)
	}
	return append(all, longerCalls()...)
}

func longerCalls() (all []billable) {
	for _, took := range []string{"10", "50", "100", "300"} {
		all = append(all, billable{
			name: "HTTP: tools/call, " + took + " ms", requests: 1, enters: true, bytes: answerBytes,
			operation: operation{working, sends(callWith(`{"sleep":` + took + `}`))},
		})
	}
	for _, took := range []string{"10", "50", "100", "300"} {
		all = append(all, overSocketFor(took, true))
	}
	all = append(all, overSocketFor("10", false))
	return append(all, heldFor("GET of an idle listener, held for 1 s", time.Second), heldFor("a stream, held for 14 minutes in vain", 14*time.Minute))
}

// heldFor returns the operation of holding a stream on which nothing comes.
func heldFor(name string, hold time.Duration) billable {
	return billable{
		name: name, requests: 1, enters: true, bytes: answerBytes,
		operation: operation{begun, func(t *testing.T, c *counted, id storage.ID) { c.resume(t, id, "", hold) }},
	}
}

// overSocketFor returns the operation of a call over a WebSocket. The function waits
// until the call is accepted. met says that the instance has read the record of the
// connection before.
func overSocketFor(took string, met bool) billable {
	var who sessions.Caller
	b := billable{name: "WebSocket: tools/call, " + took + " ms", messages: 2, enters: true, held: new(time.Duration), pushes: 1, bytes: answerBytes}
	if !met {
		b.name += ", by an instance new to the connection"
	}
	b.operation = operation{
		func(t *testing.T, c *counted) (id storage.ID) {
			opened(t, c)
			who, id = c.overSocket(t, "c1")
			return id
		},
		func(t *testing.T, c *counted, id storage.ID) {
			if !met {
				if _, err := c.host.Connection(t.Context(), who.Conn); err != nil {
					t.Fatal(err)
				}
			}
			begun := time.Now()
			call, err := c.host.Accept(t.Context(), who, id, []wire.Message{parse(t, callWith(`{"sleep":`+took+`}`))}, false)
			if err == nil {
				_, err = call.Next(t.Context(), begun)
			}
			commontest.OK(t, err)
			*b.held = time.Since(begun)
			time.Sleep(time.Second)
		},
	}
	return b
}

// of returns what AWS bills for an operation.
func (o billable) of(b bill, took time.Duration) metertest.Operation {
	got := metertest.Operation{
		Name: o.name, Requests: o.requests, Messages: o.messages, Wakes: o.wakes, OutBytes: o.bytes, Posts: o.pushes,
		Trips: b.DynamoDB.Requests, ReadUnits: b.DynamoDB.ReadUnits, WriteUnits: b.DynamoDB.WriteUnits,
		Waits: float64(b.DynamoDB.Waits), WaitUnits: b.DynamoDB.WaitUnits, Held: took,
	}
	if o.held != nil {
		got.Held = *o.held
	}
	if o.enters {
		got.Invocations++
	}
	for _, n := range b.Up {
		got.Invocations += n
		got.Messages += n
	}
	for kind, n := range b.Down {
		got.Messages += n
		if kind == "deliver" || kind == "answer" || kind == "stop" || kind == "nudge" {
			got.Posts += n // the others are what a route answers
		}
	}
	return got
}

// oneTable is DynamoDB Local with one table for all operations: their sessions do not
// affect one another.
func oneTable(t *testing.T) driver {
	open := onDynamoDB(t)
	return func(*testing.T) func(*testing.T) storage.Store { return open }
}

// count returns what AWS bills for an operation. Waits and times are means over times
// runs, because the moments at which a wait polls are random.
func count(t *testing.T, on driver, o billable, times int) metertest.Operation {
	t.Helper()
	sum := countOnce(t, on, o)
	for range times - 1 {
		again := countOnce(t, on, o)
		sum.Waits += again.Waits
		sum.WaitUnits += again.WaitUnits
		sum.Held += again.Held
	}
	sum.Waits /= float64(times)
	sum.WaitUnits /= float64(times)
	sum.Held /= time.Duration(times)
	return sum
}

func countOnce(t *testing.T, on driver, o billable) metertest.Operation {
	t.Helper()
	var took time.Duration
	timed := operation{o.prepare, func(t *testing.T, c *counted, id storage.ID) {
		begun := time.Now()
		o.run(t, c, id)
		took = time.Since(begun)
		synctest.Wait()
	}}
	return o.of(billed(t, on, timed), took)
}

// These limit the cost of a call of a tool that takes 10 ms, in US dollars for a million
// calls, and the cost of a thousand silent sessions for a day. They leave out the time of
// boxes, and logs.
const (
	mostHTTP   = 10.0
	mostSocket = 7.0
	mostSilent = 0.02
)

func TestCallsCostAtMostThis(t *testing.T) {
	most := map[string]float64{"HTTP: tools/call, 10 ms": mostHTTP, "WebSocket: tools/call, 10 ms": mostSocket}
	prices, habits, on := meter.Published(), meter.Usual(), oneTable(t)
	for _, o := range longerCalls() {
		if most[o.name] == 0 {
			continue
		}
		u := count(t, on, o, 10).Units(habits)
		u.LogGB = 0
		if got := prices.Cost(u) * 1e6; got > most[o.name] {
			t.Errorf("%s: a million cost $%.2f, at most %.2f: %+v", o.name, got, most[o.name], prices.Bill(u.Times(1e6)))
		}
		delete(most, o.name)
	}
	if len(most) > 0 {
		t.Errorf("not counted: %v", most)
	}
}

func TestSilenceCostsAtMostThis(t *testing.T) {
	var quiet metertest.Operation
	for _, o := range billables() {
		if o.name == "a session, a day of silence" {
			quiet = count(t, onDynamoDB, o, 1)
		}
	}
	if quiet.Name == "" {
		t.Fatal("silence was not counted")
	}
	habits := meter.Usual()
	u := quiet.Units(habits).Times(1000).Plus(metertest.Silent(habits, 1000, metertest.Operation{}, 0))
	if got := meter.Published().Cost(u); got == 0 || got > mostSilent {
		t.Errorf("a thousand silent sessions cost $%.5f a day, at most %.2f: %+v", got, mostSilent, u)
	}
}

// TestCountsForTheBill writes the counts of all operations to a file, for make bench-cost.
// Without the flag for the file it does nothing.
func TestCountsForTheBill(t *testing.T) {
	if *countsFile == "" {
		return
	}
	var all []metertest.Operation
	for _, o := range billables() {
		times := 1
		if strings.Contains(o.name, "tools/call,") {
			times = 5
		}
		all = append(all, count(t, onDynamoDB, o, times))
	}
	writeCounts(t, all)
}

func writeCounts(t *testing.T, all []metertest.Operation) {
	t.Helper()
	text, err := json.MarshalIndent(all, "", " ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(*countsFile), 0o755)
	}
	if err == nil {
		err = os.WriteFile(*countsFile, text, 0o644)
	}
	commontest.OK(t, err)
}
