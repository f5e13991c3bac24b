package relay_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// price is what an operation costs: a line of the table in docs/costs.md.
type price struct {
	name  string
	calls string // of the store by method, without Wait
	reads int    // of those, on every driver: round trips
	write int
	waits int // calls of Wait
	// On DynamoDB, without what Wait asks for.
	requests              int
	readUnits, writeUnits float64
	// replay: the Waits find what is there, so that what they cost is known. The
	// others wait, and ask by the schedule.
	replay   *consumed
	up, down string // messages of the runner, and to it
	operation
}

// charged is a bill in the form of a price.
func charged(o price, b bill) price {
	got := price{
		name: o.name, reads: b.Reads, write: b.Writes, waits: b.Calls["Wait"],
		requests: b.DynamoDB.Requests, readUnits: b.DynamoDB.ReadUnits, writeUnits: b.DynamoDB.WriteUnits,
		up: list(b.Up), down: list(b.Down),
	}
	if o.replay != nil {
		got.replay = &consumed{Waits: b.DynamoDB.Waits, WaitUnits: b.DynamoDB.WaitUnits}
	}
	delete(b.Calls, "Wait")
	got.calls = list(b.Calls)
	return got
}

// without is a price on a driver that counts nothing.
func (p price) without() price {
	p.requests, p.readUnits, p.writeUnits = 0, 0, 0
	if p.replay != nil {
		p.replay = &consumed{}
	}
	return p
}

// String is a price as it is written in the table of prices.
func (p price) String() string {
	replay := ""
	if p.replay != nil {
		replay = fmt.Sprintf(" replay: &consumed{Waits: %d, WaitUnits: %v},", p.replay.Waits, p.replay.WaitUnits)
	}
	return fmt.Sprintf("calls: %q, reads: %d, write: %d, waits: %d, requests: %d, readUnits: %v, writeUnits: %v,%s up: %q, down: %q",
		p.calls, p.reads, p.write, p.waits, p.requests, p.readUnits, p.writeUnits, replay, p.up, p.down)
}

// list writes what was counted, by name.
func list[K ~string](counts map[K]int) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		text := string(name)
		if n := counts[name]; n != 1 {
			text = strconv.Itoa(n) + " " + text
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func TestCostOnSQLite(t *testing.T) {
	for _, p := range prices() {
		t.Run(p.name, func(t *testing.T) {
			if want, got := p.without().String(), charged(p, billed(t, onSQLite, p.operation)).String(); want != got {
				t.Errorf("it costs\n%s, want\n%s", got, want)
			}
		})
	}
}

func TestCostOnDynamoDB(t *testing.T) {
	for _, p := range prices() {
		t.Run(p.name, func(t *testing.T) {
			b := billed(t, estimated(onDynamoDB), p.operation)
			if want, got := p.String(), charged(p, b).String(); want != got {
				t.Errorf("it costs\n%s, want\n%s", got, want)
			}
			wellGuessed(t, b)
		})
	}
}

// wellGuessed compares what meter.Estimate says of an operation, which the bill of one
// machine is made of, with what DynamoDB Local has counted. Records that are not there
// cost a unit in the estimate, as on AWS; to read the last batch of a stream may cost
// more than the one that is taken for it.
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

// table is the prices as docs/costs.md has them.
func table() []string {
	lines := []string{
		"| operation | calls of the store | reads | writes | requests | read units | write units | waits | runner → host | host → runner |",
		"|---|---|---|---|---|---|---|---|---|---|",
	}
	none := func(s string) string { return cmp.Or(s, "–") }
	for _, p := range prices() {
		waits := none(strings.TrimPrefix(strconv.Itoa(p.waits), "0"))
		if p.replay != nil {
			waits = fmt.Sprintf("%d: %d requests, %v units", p.waits, p.replay.Waits, p.replay.WaitUnits)
		}
		lines = append(lines, fmt.Sprintf("| %s | %s | %d | %d | %d | %v | %v | %s | %s | %s |",
			p.name, none(p.calls), p.reads, p.write, p.requests, p.readUnits, p.writeUnits, waits, none(p.up), none(p.down)))
	}
	return lines
}

func TestCostsInTheDocumentsAreThose(t *testing.T) {
	want := table()
	t.Logf("the table:\n%s", strings.Join(want, "\n"))
	text, err := os.ReadFile("../../docs/costs.md")
	if err != nil {
		t.Fatal(err)
	}
	most := fmt.Sprintf("at most %d requests in 5 s and %d in 25 s", asked(5*time.Second)+1, asked(25*time.Second)+1)
	if !strings.Contains(string(text), most) {
		t.Errorf("docs/costs.md does not say %q of the waits", most)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == want[0] || len(got) > 0 && strings.HasPrefix(line, "|") {
			got = append(got, line)
		} else if len(got) > 0 {
			break
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("the table of costs in docs/costs.md (-this test +it), see above for the whole:\n%s", diff)
	}
}
