package storagetest

import (
	"context"
	"maps"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
)

// Counts has numbers of calls of a store. Each call stands for one round trip, though a driver may
// need several for List and Due. Calls that fail count too, and a compare-and-swap that is refused
// counts as a write.
type Counts struct {
	Reads  int
	Writes int
	Waits  int            // calls of Wait, which do not count as reads
	Bytes  int64          // bytes of content in the records that were written; see intercept.Call.Bytes
	Calls  map[string]int // all calls, by intercept.Call.Method
}

// Counting is a store that counts its calls. It is safe for concurrent use.
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
		c.counts.Bytes += int64(intercept.Bytes(call.In))
	case intercept.Wait:
		c.counts.Waits++
	}
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
