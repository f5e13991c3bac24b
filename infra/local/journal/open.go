package journal

import (
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// later stores a call in l.open until its end is known. If the end has come before, later records it.
func (l *Lines) later(stream storage.StreamID, e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= maxKnown {
		clear(l.open)
	}
	if end, ok := l.open[stream]; ok && end.Kind == "" {
		delete(l.open, stream)
		l.over(e, end.Time, end.Reason)
		return
	}
	l.open[stream] = e
}

// goesOn forgets a call that a new request of its client continues.
func (l *Lines) goesOn(stream storage.StreamID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[stream].Kind != "" {
		delete(l.open, stream)
	}
}

// Open returns the server of each open call that no HTTP request waits for, such as calls over
// WebSockets.
func (l *Lines) Open() (servers []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.open {
		if e.Kind != "" { // an entry without a kind is the end of a call that is not known yet
			servers = append(servers, e.Name)
		}
	}
	return servers
}

// ended records the end of a call. If the call is not known yet, ended stores its end in l.open, as an
// event without a kind.
func (l *Lines) ended(end observe.Ended) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= maxKnown {
		clear(l.open)
	}
	e, ok := l.open[end.Stream]
	if !ok {
		l.open[end.Stream] = Event{Time: time.Now(), Reason: l.reason("", end.Why)}
		return
	}
	delete(l.open, end.Stream)
	l.over(e, time.Now(), l.reason(e.Name, end.Why))
}

// over records the end of a call that began at e.Time.
func (l *Lines) over(e Event, at time.Time, reason string) {
	e.Duration, e.Time, e.Reason = at.Sub(e.Time), at, reason
	l.to.Record(e)
}
