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
	hasty  bool           // an event must be written at once
	total  int            // how many events were added
	skip   map[string]int // by event in the log: how often the server may still send it again
	less   chan struct{}  // closed when events are drained
	notes  []note         // in order; a note counts once all events added before it are in the log
}

// note is a request that another instance can execute instead, if this instance dies; see
// Request.Note.
type note struct {
	raw []byte
	at  int // how many events were added before the note
}

// mostNotes is how many notes may wait until the events before them are written.
const mostNotes = 64

// note adds a note after the events so far. It does nothing if too many notes wait, or while the
// server repeats events.
func (o *outbox) note(raw []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.skip) > 0 || len(o.notes) >= mostNotes {
		return
	}
	if n := len(o.notes); n > 0 && o.notes[n-1].at == o.total {
		o.notes = o.notes[:n-1]
	}
	o.notes = append(o.notes, note{raw, o.total})
}

// noted returns the last note whose earlier events are all in the log. written is how many events
// are in the log.
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

// skipped reports whether an event is in the log already and the server has sent it again.
// After the first new event all are new, because the server repeats its events in order.
func (o *outbox) skipped(raw []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.skip[string(raw)]
	switch n {
	case 0:
		o.skip = nil
	case 1:
		delete(o.skip, string(raw))
	default:
		o.skip[string(raw)] = n - 1
	}
	return n > 0
}

func newOutbox() *outbox { return &outbox{news: make(chan struct{}, 1), less: make(chan struct{})} }

// mostWaiting is how many writes the waiting events may fill before the method room blocks.
const mostWaiting = 2

// room blocks while too many events wait to be written, but not after one of the channels is closed.
func (o *outbox) room(stopped, over <-chan struct{}) {
	for {
		o.mu.Lock()
		free, less := o.shut || len(o.events) < mostWaiting*mostEvents && o.size < mostWaiting*mostBytes, o.less
		o.mu.Unlock()
		if free {
			return
		}
		select {
		case <-less:
		case <-stopped:
			return
		case <-over:
			return
		}
	}
}

func (o *outbox) hurry() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hasty = !o.shut
	o.tell()
}

// tell says that there is something to write. The caller holds the lock.
func (o *outbox) tell() {
	select {
	case o.news <- struct{}{}:
	default:
	}
}

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
	o.tell()
}

// pressing reports whether events must be written at once, or whether there are as many as
// fit into one write.
func (o *outbox) pressing() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.hasty || len(o.events) >= mostEvents || o.size >= mostBytes
}

// drain removes all events and returns them. If last is true, add drops all later events.
func (o *outbox) drain(last bool) [][]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	events := o.events
	o.events, o.size, o.hasty, o.shut = nil, 0, false, o.shut || last
	close(o.less)
	o.less = make(chan struct{})
	return events
}
