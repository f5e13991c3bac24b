package relay_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
	"github.com/dormouse-mcp/dormouse/shared/store/storetest"
)

// This file measures the world of counted_test.go over a driver. The tests still run in
// virtual time, which stands still while a driver works. So a call that takes five seconds
// costs the same on every machine, and takes the test no time.

func TestMain(m *testing.M) { storetest.Main(m, os.Getenv) }

// driver prepares a store, outside of the bubble of synctest. open then opens the store
// inside the bubble.
type driver func(t *testing.T) (open func(t *testing.T) storage.Store)

func inMemory(*testing.T) func(*testing.T) storage.Store {
	return func(*testing.T) storage.Store { return patient{storagetest.NewMemory()} }
}

// patient continues a wait that returned early and empty because an item was written.
// DynamoDB does not end a wait for that reason, and the prices hold for all drivers.
type patient struct{ storage.Store }

func (p patient) Wait(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, until time.Time) (storage.Page, error) {
	for {
		page, err := p.Store.Wait(ctx, id, stream, after, until)
		if err != nil || len(page.Events) > 0 || !time.Now().Before(until) {
			return page, err
		}
	}
}

// The log never reaches its limits. The driver enforces them at random moments, which would
// change the counts.
func onDynamoDB(t *testing.T) func(*testing.T) storage.Store {
	open := storetest.Table(t)
	return func(*testing.T) storage.Store {
		return &paced{Store: open(dynamostore.Options{Events: 1 << 30, Bytes: 1 << 50})}
	}
}

// paced checks the schedule of the driver's Wait: every 5 ms at first, then after a tenth
// of the time waited, at last every second. The batch before the cursor takes one request
// more.
type paced struct {
	*dynamostore.Store
	mu      sync.Mutex
	waiting int
	excess  []time.Duration // waits that asked more often
}

func (p *paced) Wait(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, until time.Time) (storage.Page, error) {
	p.enter(1)
	defer p.enter(-1)
	begun, before := time.Now(), p.Usage().Requests["Wait"]
	page, err := p.Store.Wait(ctx, id, stream, after, until)
	took := time.Since(begun)
	if p.Usage().Requests["Wait"]-before > asked(took)+1 {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.excess = append(p.excess, took)
	}
	return page, err
}

// enter fails the test if there is a second waiter: the requests of two waiters could not
// be told apart.
func (p *paced) enter(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting += n; p.waiting > 1 {
		panic("two wait at once: whose requests are whose?")
	}
}

// asked returns how many requests a wait of that time makes at most.
func asked(took time.Duration) (n int64) {
	for waited := time.Duration(0); waited <= took; n++ {
		waited += min(max(waited/10, 5*time.Millisecond), time.Second)
	}
	return n + 1 // at the end
}

// bill is what an operation cost.
type bill struct {
	costs                   // without Wait
	Calls    map[string]int // of the store, those of Wait too
	DynamoDB consumed       // zero on another driver
	Guess    meter.Stored   // zero if nobody estimates
}

// consumed is what DynamoDB counted, with the requests of Wait apart.
type consumed struct {
	Requests              int
	ReadUnits, WriteUnits float64
	Waits                 int
	WaitUnits             float64
}

// estimated returns a driver that also estimates the costs of its calls.
func estimated(on driver) driver {
	return func(t *testing.T) func(*testing.T) storage.Store {
		open := on(t)
		return func(t *testing.T) storage.Store { return meter.Estimate(open(t)) }
	}
}

// guess returns the estimate of what the operations have consumed.
func (c *counted) guess() (s meter.Stored) {
	if e, ok := c.store.Unwrap().(*meter.EstimateStore); ok {
		s = e.Spent()
	}
	return s
}

// driver returns the store below all wrappers that count.
func (c *counted) driver() storage.Store {
	if e, ok := c.store.Unwrap().(*meter.EstimateStore); ok {
		return e.Unwrap()
	}
	return c.store.Unwrap()
}

func (c *counted) consumed() (u consumed) {
	p, ok := c.driver().(*paced)
	if !ok {
		return u
	}
	usage := p.Usage()
	for name, n := range usage.Requests {
		if name == "Wait" {
			u.Waits = int(n)
		} else {
			u.Requests += int(n)
		}
	}
	u.ReadUnits, u.WriteUnits, u.WaitUnits = usage.ReadUnits-usage.WaitUnits, usage.WriteUnits, usage.WaitUnits
	return u
}

func (c *counted) bill(before consumed) bill {
	u := c.consumed()
	u.Requests -= before.Requests
	u.ReadUnits -= before.ReadUnits
	u.WriteUnits -= before.WriteUnits
	u.Waits -= before.Waits
	u.WaitUnits -= before.WaitUnits
	return bill{costs: c.costs(), Calls: c.store.Counts().Calls, DynamoDB: u}
}

// billed runs an operation on a driver in a world of its own and returns its bill.
func billed(t *testing.T, on driver, o operation) (b bill) {
	t.Helper()
	open := on(t)
	now := time.Now()
	synctest.Test(t, func(t *testing.T) {
		// The clock of the bubble is ahead of the server's. So a record that has expired
		// for the server has expired in the bubble too.
		time.Sleep(time.Until(now.Add(time.Hour)))
		c := countedOn(t, open(t))
		id := o.prepare(t, c)
		synctest.Wait()
		c.reset()
		before, guess := c.consumed(), c.guess()
		o.run(t, c, id)
		synctest.Wait()
		b = c.bill(before)
		b.Guess = c.guess().Minus(guess)
		if p, ok := c.driver().(*paced); ok && len(p.excess) > 0 {
			t.Errorf("waits of %v asked DynamoDB more often than the schedule says", p.excess)
		}
		time.Sleep(10 * time.Minute)
		c.quiet()
		commontest.Check(t, c.store.Close())
	})
	return b
}
