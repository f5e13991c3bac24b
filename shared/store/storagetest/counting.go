package storagetest

import (
	"context"
	"maps"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
)

// Counts is the cost of an operation in calls of the store, each of which is one round trip.
// A compare-and-swap is a write even if it is refused. Failed calls count too. List and
// Due count as one read, though a driver may need several.
type Counts struct {
	Reads  int
	Writes int
	Waits  int   // calls of Wait, which do not count as reads
	Bytes  int64 // given to writes; see intercept.Call.Bytes
	Calls  map[string]int
}

// Counting is a store that counts its calls. Tests check the budgets of operations with it. It
// is safe for concurrent use.
type Counting struct {
	*intercept.Store

	mu     sync.Mutex
	counts Counts
}

// NewCounting returns a store that counts the calls of inner. Closing it closes inner; Close
// is not counted.
func NewCounting(inner storage.Store) *Counting {
	c := &Counting{}
	c.Store = intercept.New(inner, func(ctx context.Context, call *intercept.Call, do func(context.Context) error) error {
		c.count(call)
		return do(ctx)
	})
	return c
}

func (c *Counting) count(call *intercept.Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch call.Kind {
	case intercept.Read:
		c.counts.Reads++
	case intercept.Write:
		c.counts.Writes++
	case intercept.Wait:
		c.counts.Waits++
	}
	c.counts.Bytes += int64(call.Bytes())
	if c.counts.Calls == nil {
		c.counts.Calls = map[string]int{}
	}
	c.counts.Calls[call.Method]++
}

// Counts returns what has been counted since the last Reset.
func (c *Counting) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.counts
	counts.Calls = maps.Clone(counts.Calls)
	return counts
}

// Reset sets all counts to zero.
func (c *Counting) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts = Counts{}
}
