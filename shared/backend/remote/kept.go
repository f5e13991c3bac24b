package remote

import (
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// A process keeps at most mostKept conversations open, and at most mostOfOne of one principal.
// Each costs a connection.
const (
	mostKept  = 512
	mostOfOne = 64
)

// waiting is a conversation that is kept open until its client has answered.
type waiting struct {
	name string // random
	of   owner
	talk *conversation
	end  *time.Timer
}

type owner struct{ tenant, principal string }

// put keeps a conversation open until take returns it, but no longer than limit; 0 means
// storage.MaxAsk. If there are too many conversations, put closes one (see tooMany).
func (c *Servers) put(name string, of owner, talk *conversation, limit time.Duration) {
	if limit <= 0 {
		limit = storage.MaxAsk
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	end := time.AfterFunc(limit, func() {
		if t := c.take(name); t != nil {
			t.close()
		}
	})
	c.kept = append(c.kept, &waiting{name, of, talk, end})
	if talk.flow.kept.Store(true); talk.flow.ahead.Load() > maxAhead {
		talk.close()
	}
	if i := tooMany(c.kept, of); i >= 0 {
		c.drop(i).close()
	}
}

// tooMany returns the index of the conversation that must be closed after a new one was added;
// -1 for none. If the owner of the new one has too many, tooMany returns this owner's oldest.
// If the process has too many, tooMany returns the oldest of the owner who has most, so that a
// user with many conversations does not push out those of others.
func tooMany(kept []*waiting, of owner) int {
	has := map[owner]int{}
	for _, w := range kept {
		has[w.of]++
	}
	if has[of] <= mostOfOne {
		if len(kept) <= mostKept {
			return -1
		}
		for _, w := range kept {
			if has[w.of] > has[of] {
				of = w.of
			}
		}
	}
	return slices.IndexFunc(kept, func(w *waiting) bool { return w.of == of })
}

// take returns a conversation that c keeps, and forgets it. It returns nil if c does not
// have the conversation.
func (c *Servers) take(name string) *conversation {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.kept, func(w *waiting) bool { return w.name == name })
	if i < 0 {
		return nil
	}
	talk := c.drop(i)
	talk.flow.kept.Store(false)
	return talk
}

// drop forgets a conversation and returns it. The caller holds c.mu.
func (c *Servers) drop(i int) *conversation {
	w := c.kept[i]
	w.end.Stop()
	c.kept = slices.Delete(c.kept, i, i+1)
	return w.talk
}
