package native

import (
	"context"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// mostKept is how many bytes of events a shown keeps.
const mostKept = 2 * mostBytes

// shown keeps the events that a run has written to the log and that watch has not returned yet.
// The instance that executes a request mostly also waits for its answer, and need not read
// the store. Above a limit, shown drops events.
type shown struct {
	mu    sync.Mutex
	tail  []storage.Event
	from  storage.Index // index of the last event before tail
	grown chan struct{} // closed when there is more
}

func newShown() *shown { return &shown{grown: make(chan struct{})} }

// publish adds a batch that is in the log now.
func (s *shown) publish(b storage.Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, raw := range b.Events {
		e := storage.Event{Index: b.First + storage.Index(i), Raw: raw}
		e.Final = b.Final && e.Index == b.Last()
		s.tail = append(s.tail, e)
	}
	size := 0
	for _, e := range s.tail {
		size += len(e.Raw)
	}
	if len(s.tail) > mostEvents || size > mostKept {
		s.from = s.tail[len(s.tail)-1].Index
		s.tail = nil
	}
	close(s.grown)
	s.grown = make(chan struct{})
}

// watch implements sessions.InlineTracker.Watch: it waits for events after an index. over is
// closed when no more events can come.
func (s *shown) watch(ctx context.Context, after storage.Index, until time.Time, over <-chan struct{}) (page storage.Page, ok bool, err error) {
	late := time.After(time.Until(until))
	for {
		page, ok, grown := s.behind(after)
		if !ok || len(page.Events) > 0 {
			return page, ok, nil
		}
		select {
		case <-grown:
		case <-over: // the last events were published before over was closed
			page, ok, _ := s.behind(after)
			return page, ok && len(page.Events) > 0, nil
		case <-late:
			return storage.Page{}, true, nil
		case <-ctx.Done():
			return storage.Page{}, false, ctx.Err()
		}
	}
}

// behind returns the events after an index, and drops those up to it. ok is false if some
// events after the index were dropped. grown is closed when there are more.
func (s *shown) behind(after storage.Index) (page storage.Page, ok bool, grown <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if after < s.from {
		return page, false, nil
	}
	n := 0
	for n < len(s.tail) && s.tail[n].Index <= after {
		n++
	}
	page.Events, s.tail, s.from = s.tail[n:], s.tail[n:], after
	return page, true, s.grown
}
