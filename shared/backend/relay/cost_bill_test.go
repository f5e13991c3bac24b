package relay_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/meter/metertest"
)

// These tests turn the operations of the cost table, and calls of slower tools, into the
// amounts that AWS bills. infra/proof/cost makes its tables from them.

// countsFile is the file into which TestCountsForTheBill writes its counts.
var countsFile = flag.String("counts", "", "write the counted operations to this file, as JSON")

// billable is an operation, with the facts for its bill that the counts of the relay do
// not give.
type billable struct {
	operation
	requests int            // requests of the client to the REST API, or
	messages int            // over a WebSocket, both ways
	enters   bool           // the client's request is an invocation
	held     *time.Duration // how long a function waits; nil: as long as the operation takes
	pushes   int            // posts to the client
	bytes    int            // of the answers
}

// answerBytes is the size of the answer to a call, with headers.
const answerBytes = 1000

func billables() []billable {
	var all []billable
	for _, o := range operations() {
		if strings.HasPrefix(o.name, "WebSocket: tools/call") || strings.HasPrefix(o.name, "WebSocket: the same") || o.name == "tools/call, awake box, answered within a second" {
			continue
		}
		b := billable{operation: o, enters: true, requests: 1, bytes: answerBytes}
		b.name = strings.Replace(o.name, "the same", "tools/call", 1)
		switch {
		case strings.HasPrefix(o.name, "WebSocket: "):
			b.requests, b.held = 0, new(time.Duration)
			if o.name == "WebSocket: ping" {
				b.messages = 2
			}
		case o.name == "a box falls asleep", o.name == "a fresh process that lists as the one before", strings.HasPrefix(o.name, "a session, a day"):
			b.requests, b.enters, b.bytes, b.held = 0, false, 0, new(time.Duration)
		}
		all = append(all, b)
	}
	return append(all, longerCalls()...)
}

func longerCalls() (all []billable) {
	times := []string{"10", "50", "100", "300"}
	for _, took := range times {
		all = append(all, billable{
			requests: 1, enters: true, bytes: answerBytes,
			operation: operation{"HTTP: tools/call, " + took + " ms", working, sends(callWith(`{"sleep":` + took + `}`))},
		})
	}
	for _, took := range times {
		all = append(all, overSocketFor(took, true))
	}
	all = append(all, overSocketFor("10", false))
	return append(all, heldFor("GET of an idle listener, held for 1 s", time.Second), heldFor("a stream, held for 14 minutes in vain", 14*time.Minute))
}

// heldFor returns the operation of holding a stream on which nothing comes.
func heldFor(name string, hold time.Duration) billable {
	return billable{
		requests: 1, enters: true, bytes: answerBytes,
		operation: operation{name, begun, func(t *testing.T, c *counted, id storage.ID) { c.resume(t, id, "", hold) }},
	}
}

// overSocketFor returns the operation of a call over a WebSocket. The function waits
// until the call is accepted. met says that the instance has read the record of the
// connection before.
func overSocketFor(took string, met bool) billable {
	var who sessions.Caller
	name := "WebSocket: tools/call, " + took + " ms"
	if !met {
		name += ", by an instance new to the connection"
	}
	b := billable{messages: 2, enters: true, held: new(time.Duration), pushes: 1, bytes: answerBytes}
	b.operation = operation{
		name, func(t *testing.T, c *counted) (id storage.ID) {
			opened(t, c)
			who, id = c.overSocket(t, "c1")
			return id
		},
		func(t *testing.T, c *counted, id storage.ID) {
			if !met {
				_, err := c.host.Connection(t.Context(), who.Conn)
				commontest.OK(t, err)
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
		Name: o.name, Requests: o.requests, Messages: o.messages, Wakes: min(1, b.Up[frame.TypeHello]), OutBytes: o.bytes, Posts: o.pushes,
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

// count returns what AWS bills for an operation. Waits and times are means over times runs,
// because the moments at which a wait polls are random.
func count(t *testing.T, on driver, o billable, times int) (sum metertest.Operation) {
	t.Helper()
	var waits, units float64
	var held time.Duration
	for range times {
		var took time.Duration
		timed := operation{o.name, o.prepare, func(t *testing.T, c *counted, id storage.ID) {
			begun := time.Now()
			o.run(t, c, id)
			took = time.Since(begun)
			synctest.Wait()
		}}
		sum = o.of(billed(t, on, timed), took)
		waits, units, held = waits+sum.Waits, units+sum.WaitUnits, held+sum.Held
	}
	sum.Waits, sum.WaitUnits, sum.Held = waits/float64(times), units/float64(times), held/time.Duration(times)
	return sum
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
	text, err := json.MarshalIndent(all, "", " ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(*countsFile), 0o755)
	}
	if err == nil {
		err = os.WriteFile(*countsFile, text, 0o644)
	}
	commontest.OK(t, err)
}
