package native

import "sync"

// outbox gathers the messages that the handlers of a run send, until the run writes
// them.
type outbox struct {
	news chan struct{} // capacity 1; filled when an event was added

	mu     sync.Mutex
	events [][]byte
	size   int
	shut   bool
}

func newOutbox() *outbox { return &outbox{news: make(chan struct{}, 1)} }

// add adds an event. After the last drain it drops the event.
func (o *outbox) add(raw []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shut {
		return
	}
	o.events = append(o.events, raw)
	o.size += len(raw)
	select {
	case o.news <- struct{}{}:
	default:
	}
}

// full reports whether there are as many events as fit into one write.
func (o *outbox) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.events) >= mostEvents || o.size >= mostBytes
}

// drain removes all events and returns them. last makes it the last drain.
func (o *outbox) drain(last bool) [][]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	events := o.events
	o.events, o.size, o.shut = nil, 0, o.shut || last
	return events
}
