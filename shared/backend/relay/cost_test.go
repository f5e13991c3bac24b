package relay_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// price is a line of the table in costs.md: what an operation may cost at most.
type price struct {
	name  string
	reads int // round trips to the store, on every driver
	write int
	waits int // calls of Wait
	// These count on DynamoDB, without the requests of Wait.
	requests              int
	readUnits, writeUnits float64
	// refused are the write units of writes that are refused. Only the estimate has them.
	refused float64
	// replay is set for a replay: its Waits find stored events, so their cost is known.
	// The Waits of other operations poll by the schedule.
	replay   *consumed
	up, down string // messages from the runner and to it, for example "hello, 2 events"
	operation
}

// exceeds lists in which parts a bill is over the price. Calls of the store and messages
// must be those of the price. A bill has 0 for a part that the driver does not count.
func (p price) exceeds(b bill) (over []string) {
	at := func(what string, got, most float64) {
		if got > most {
			over = append(over, fmt.Sprintf("%v %s, at most %v", got, what, most))
		}
	}
	want := costs{Reads: p.reads, Writes: p.write, Up: messages(p.up), Down: messages(p.down)}
	if diff := gocmp.Diff(want, b.costs); diff != "" {
		over = append(over, "another price (-want +got):\n"+diff)
	}
	at("waits", float64(b.Calls["Wait"]), float64(p.waits))
	at("requests", float64(b.DynamoDB.Requests), float64(p.requests))
	at("read units", b.DynamoDB.ReadUnits, p.readUnits)
	at("write units", b.DynamoDB.WriteUnits, p.writeUnits)
	if p.replay != nil {
		at("requests of waits", float64(b.DynamoDB.Waits), float64(p.replay.Waits))
		at("units of waits", b.DynamoDB.WaitUnits, p.replay.WaitUnits)
	}
	return over
}

// messages reads a list such as "hello, 2 events".
func messages(text string) frames {
	counts := frames{}
	for _, entry := range strings.Split(text, ", ") {
		if entry == "" {
			continue
		}
		n := 1
		if number, kind, two := strings.Cut(entry, " "); two {
			n, _ = strconv.Atoi(number) // this is 0, and so the bill is over, if the text is no number
			entry = kind
		}
		counts[frame.Type(entry)] += n
	}
	return counts
}

func TestCostOnSQLite(t *testing.T) {
	for _, p := range prices() {
		t.Run(p.name, func(t *testing.T) {
			for _, over := range p.exceeds(billed(t, onSQLite, p.operation)) {
				t.Error(over)
			}
		})
	}
}

func TestCostOnDynamoDB(t *testing.T) {
	for _, p := range prices() {
		t.Run(p.name, func(t *testing.T) {
			b := billed(t, estimated(onDynamoDB), p.operation)
			for _, over := range p.exceeds(b) {
				t.Error(over)
			}
			b.Guess.WriteUnits -= p.refused
			wellGuessed(t, b)
		})
	}
}

func TestWhatIsOverItsPriceIsFound(t *testing.T) {
	p := price{reads: 1, write: 1, waits: 1, requests: 1, readUnits: 1, writeUnits: 1, replay: &consumed{Waits: 1, WaitUnits: 1}, up: "2 events", down: "ack"}
	within := bill{costs: costs{Reads: 1, Writes: 1, Up: frames{frame.TypeEvents: 2}, Down: frames{frame.TypeAck: 1}}}
	if over := p.exceeds(within); len(over) > 0 {
		t.Errorf("over its price: %v", over)
	}
	b := bill{Calls: map[string]int{"Wait": 2}}
	b.DynamoDB = consumed{Requests: 2, ReadUnits: 2, WriteUnits: 2, Waits: 2, WaitUnits: 2}
	if over := p.exceeds(b); len(over) != 7 {
		t.Errorf("over its price: %v", over)
	}
}

// wellGuessed compares the estimate of an operation by meter.Estimate, from which the bill
// of one machine is made, with the count of DynamoDB Local. In the estimate, as on AWS, a
// record that does not exist costs a unit. To read the last batch of a stream may cost
// more than the estimate assumes.
func wellGuessed(t *testing.T, b bill) {
	t.Helper()
	if got, want := b.Guess.WriteUnits, b.DynamoDB.WriteUnits; got != want {
		t.Errorf("%v write units are estimated, %v were counted", got, want)
	}
	if got, want := b.Guess.ReadUnits-b.Guess.Polls, b.DynamoDB.ReadUnits; got < want-1 || got > want+2 {
		t.Errorf("%v read units are estimated, %v were counted", got, want)
	}
	least, most := b.DynamoDB.WaitUnits*0.9, 1.4*max(float64(b.DynamoDB.Waits), b.DynamoDB.WaitUnits)+5
	if got := b.Guess.Polls; got < least || got > most {
		t.Errorf("%v units of waits are estimated, %d requests with %v units were counted", got, b.DynamoDB.Waits, b.DynamoDB.WaitUnits)
	}
}

// table returns the prices in the form in which costs.md has them.
func table() string {
	var text strings.Builder
	text.WriteString("| operation, at most | reads | writes | requests | read units | write units | waits | runner → host | host → runner |\n")
	text.WriteString("|---|---|---|---|---|---|---|---|---|\n")
	none := func(s string) string { return cmp.Or(s, "–") }
	for _, p := range prices() {
		waits := none(strings.TrimPrefix(strconv.Itoa(p.waits), "0"))
		if p.replay != nil {
			waits = fmt.Sprintf("%d: %d requests, %v units", p.waits, p.replay.Waits, p.replay.WaitUnits)
		}
		fmt.Fprintf(&text, "| %s | %d | %d | %d | %v | %v | %s | %s | %s |\n",
			p.name, p.reads, p.write, p.requests, p.readUnits, p.writeUnits, waits, none(p.up), none(p.down))
	}
	return text.String()
}

var update = flag.Bool("update", false, "write the table of costs into costs.md")

func TestCostsInTheDocumentsAreThose(t *testing.T) {
	const page, begin, end = "costs.md", "<!-- costs: written by make docs -->\n", "<!-- /costs -->\n"
	raw, err := os.ReadFile(page)
	commontest.OK(t, err)
	text := string(raw)
	most := fmt.Sprintf("at most %d requests in 5 s and %d in 25 s", asked(5*time.Second)+1, asked(25*time.Second)+1)
	if !strings.Contains(text, most) {
		t.Errorf("costs.md does not say %q of the waits", most)
	}
	before, rest, opened := strings.Cut(text, begin)
	got, after, closed := strings.Cut(rest, end)
	if !opened || !closed {
		t.Fatalf("costs.md has no place for the table: %q and %q", begin, end)
	}
	want := table()
	if *update {
		commontest.OK(t, os.WriteFile(page, []byte(before+begin+want+end+after), 0o600))
		return
	}
	if diff := gocmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("costs.md, make docs writes it anew (-want +got):\n%s", diff)
	}
}
