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
	total  int    // how many events were added
	skip   int    // how many further events are in the log already
	notes  []note // not before the last one that is in the log
}

// note is a request in the form in which another function can go on with it.
type note struct {
	raw []byte
	at  int // events that were added before
}

// mostNotes is how many notes wait for the events before them to be written.
const mostNotes = 64

// note adds a note after the events so far.
func (o *outbox) note(raw []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.skip > 0 || len(o.notes) >= mostNotes {
		return
	}
	if n := len(o.notes); n > 0 && o.notes[n-1].at == o.total {
		o.notes = o.notes[:n-1]
	}
	o.notes = append(o.notes, note{raw, o.total})
}

// noted returns the last note before which all events are among the first written ones.
func (o *outbox) noted(written int) (last note, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.notes) > 1 && o.notes[1].at <= written {
		o.notes = o.notes[1:]
	}
	if len(o.notes) == 0 || o.notes[0].at > written {
		return note{}, false
	}
	return o.notes[0], true
}

// skipped reports whether an event is in the log already.
func (o *outbox) skipped() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.skip == 0 {
		return false
	}
	o.skip--
	return true
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
	o.total++
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
