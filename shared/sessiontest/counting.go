package sessiontest

import (
	"context"
	"maps"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/intercept"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Counts is what an operation cost: calls of the store, each one round trip. A
// compare-and-swap that was refused is a write; a call that failed is counted. List,
// ListKeys and Due count as one read, though they may cost a driver several.
type Counts struct {
	Reads  int
	Writes int
	Waits  int   // calls of Wait, which are not reads of the operation
	Bytes  int64 // given to writes; see intercept.Call.Bytes
	Calls  map[string]int
}

// Counting is a store that counts its calls. Tests assert budgets of operations with
// it. Safe for concurrent use.
type Counting struct {
	*intercept.Store

	mu     sync.Mutex
	counts Counts
}

// NewCounting counts the calls of inner. Closing it closes inner, which is not counted.
func NewCounting(inner session.Store) *Counting {
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
