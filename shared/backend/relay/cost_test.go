package relay_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// price is a row of the table in costs.md: what an operation may cost at most. The units are
// those of DynamoDB Local. It counts as AWS does, with two exceptions that cost a unit on AWS
// and are free there: a query that finds nothing, and a read of a record that does not exist.
type price struct {
	name  string
	costs // on every driver
	waits int
	// These count on DynamoDB, without the requests of Wait, which polls by a schedule.
	requests              int
	readUnits, writeUnits float64
}

// prices reads the table in costs.md.
func prices(t *testing.T) (all []price) {
	t.Helper()
	page, err := os.ReadFile("costs.md")
	commontest.OK(t, err)
	for row := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(row, "| \n"), " | ")
		if len(cells) != 9 || cells[1] == "reads" {
			continue
		}
		p := price{name: cells[0], costs: costs{Up: messages(cells[7]), Down: messages(cells[8])}}
		_, err := fmt.Sscan(strings.Join(cells[1:6], " "), &p.Reads, &p.Writes, &p.requests, &p.readUnits, &p.writeUnits)
		commontest.OKIn(t, p.name, err)
		p.waits, _ = strconv.Atoi(cells[6]) // or a dash
		all = append(all, p)
	}
	return all
}

// messages reads a list such as "hello, 2 events", or a dash.
func messages(text string) frames {
	counts := frames{}
	for _, entry := range strings.Split(text, ", ") {
		number, kind, several := strings.Cut(entry, " ")
		n, _ := strconv.Atoi(number)
		switch {
		case several:
			counts[frame.Type(kind)] = n
		case entry != "–":
			counts[frame.Type(entry)] = 1
		}
	}
	return counts
}

// checkCosts compares the bill of each operation on a driver with its price. Calls of the store
// and messages must be those of the price. A bill has 0 for a part that the driver does not
// count.
func checkCosts(t *testing.T, on driver, more func(*testing.T, operation, bill)) {
	all := prices(t)
	commontest.EqualIn(t, "rows in costs.md", len(operations()), len(all))
	for i, o := range operations() {
		p := all[i]
		commontest.EqualIn(t, "row in costs.md", o.name, p.name)
		t.Run(o.name, func(t *testing.T) {
			b := billed(t, on, o)
			commontest.SameIn(t, "another price than in costs.md", p.costs, b.costs)
			most := func(what string, got, most float64) {
				if got > most {
					t.Errorf("%v %s, at most %v", got, what, most)
				}
			}
			most("waits", float64(b.Calls["Wait"]), float64(p.waits))
			most("requests", float64(b.DynamoDB.Requests), float64(p.requests))
			most("read units", b.DynamoDB.ReadUnits, p.readUnits)
			most("write units", b.DynamoDB.WriteUnits, p.writeUnits)
			more(t, o, b)
		})
	}
}

// Nothing above a driver knows which one it is, so the calls of the store are the same on all.
func TestCost(t *testing.T) {
	checkCosts(t, inMemory, func(*testing.T, operation, bill) {})
}

// meter.Estimate, from which the bill of one machine is made, comes close to the count of
// DynamoDB Local. In the estimate, as on AWS, a record that does not exist costs a unit, and so
// does a write that is refused. To read the last batch of a stream may cost more than the
// estimate assumes.
func TestCostOnDynamoDB(t *testing.T) {
	checkCosts(t, estimated(onDynamoDB), func(t *testing.T, o operation, b bill) {
		writes := b.Guess.WriteUnits
		if o.name == repeat {
			writes-- // the item with the key is there already
		}
		commontest.EqualIn(t, "estimated write units", b.DynamoDB.WriteUnits, writes)
		if got, want := b.Guess.ReadUnits-b.Guess.Polls, b.DynamoDB.ReadUnits; got < want-1 || got > want+2 {
			t.Errorf("%v read units are estimated, %v were counted", got, want)
		}
		least, most := b.DynamoDB.WaitUnits*0.9, 1.4*max(float64(b.DynamoDB.Waits), b.DynamoDB.WaitUnits)+5
		if got := b.Guess.Polls; got < least || got > most {
			t.Errorf("%v units of waits are estimated, %d requests with %v units were counted", got, b.DynamoDB.Waits, b.DynamoDB.WaitUnits)
		}
	})
}

func TestThePageOfCostsSaysHowOftenAWaitAsks(t *testing.T) {
	page, err := os.ReadFile("costs.md")
	commontest.OK(t, err)
	most := fmt.Sprintf("at most %d requests in 5 s and %d in 25 s", asked(5*time.Second)+1, asked(25*time.Second)+1)
	commontest.Contains(t, "costs.md", most, string(page))
}
