package native

import "sync"

// outbox gathers what the handlers of a run say, until the run writes it.
type outbox struct {
	news chan struct{} // has room for one: something was added

	mu     sync.Mutex
	events [][]byte
	size   int
	shut   bool
}

func newOutbox() *outbox { return &outbox{news: make(chan struct{}, 1)} }

// add adds an event. It drops the event after the last drain.
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

// full says whether there is as much as one write takes.
func (o *outbox) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.events) >= mostEvents || o.size >= mostBytes
}

// drain takes the events out. last says that no others will be taken.
func (o *outbox) drain(last bool) [][]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	events := o.events
	o.events, o.size, o.shut = nil, 0, o.shut || last
	return events
}
