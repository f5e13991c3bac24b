package sessions

import (
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Some events are owed to a client: they were not delivered because the connection of
// their request has gone. The session's record then says for each such stream how far it
// was pushed (Pushed). It also says which connections may get the rest (Conns) and which
// function pushes (Pusher). The rules:
//
//   - The function that finds a connection gone adds the stream's entry, once. The entry
//     says what that connection got. From then on the stream's events go through the
//     record only. The entry stays when all was pushed, so that a late appender sees it.
//   - Only the holder of the lease posts and moves cursors. It posts first and then moves
//     the cursor. If it dies in between, its successor pushes that page again.
//   - An appender returns when its events were pushed or the session has no connection. So
//     the events of an acked batch have reached the client, or the record says that they
//     are owed.
//   - A client that comes back and names its last events sets the cursors and breaks the
//     lease, because the lease's holder was posting to a connection that is gone.
//
// A slow connection is served in the same way. The writer of a batch posts it straight for
// one second. The rest goes by the record, and the stream is Live again once all is
// pushed.
//
// A runner that got no answer sends its batch again, and the function that gets it finds
// it in the log. That function does not post it: it records the doubt and does not answer.
// The runner's next attempt comes seconds later. By then the writer has answered the
// runner, has added an entry, or is dead. Only then is the batch pushed once more.
const (
	straight     = time.Second     // how long the writer of a batch posts it itself; after that the record needs an entry
	onePost      = 2 * time.Second // how much longer the last of these posts may take
	inDoubt      = 4 * time.Second // more than both together, but less than a runner waits before it repeats a batch
	maxSkew      = time.Minute     // between the clocks of two functions
	pushLease    = 30 * time.Second
	pushPage     = 100
	toNote       = 5 * time.Second                        // the part of its time in which a function only records how far it got
	keptFinished = 32                                     // settled entries that a record keeps
	keptOwed     = 1024                                   // other entries that a record keeps; more would not fit a row of the store
	comingUp     = storage.ConnectTimeout + 2*time.Second // how long after $connect a connection may answer 410
	pushRetry    = 50 * time.Millisecond
	streamLife   = 7 * 24 * time.Hour // the log of a request stream is gone when it is older than this
)

// cursorOf returns the entry of a stream, or nil.
func cursorOf(s *storage.Session, stream storage.StreamID) *storage.Cursor {
	for i := range s.Pushed {
		if s.Pushed[i].Stream == stream {
			return &s.Pushed[i]
		}
	}
	return nil
}

// owe adds an entry unless the stream has one, and drops entries that are no longer needed.
// It replaces a Live entry and keeps the higher index, because events of a Live stream were
// posted straight. It reports whether s changed.
func owe(s *storage.Session, c storage.Cursor) bool {
	if old := cursorOf(s, c.Stream); old != nil {
		if !old.Live {
			return false
		}
		c.Index = max(c.Index, old.Index)
		s.Pushed = slices.Clone(s.Pushed)
		*cursorOf(s, c.Stream) = c
		return true
	}
	s.Pushed = append(slices.Clone(s.Pushed), c)
	finished := 0
	for _, c := range s.Pushed {
		if c.Settled() {
			finished++
		}
	}
	old := time.Now().Add(-streamLife)
	s.Pushed = slices.DeleteFunc(s.Pushed, func(c storage.Cursor) bool {
		begun := c.Stream.Time()
		drop := c.Settled() && finished > keptFinished || !begun.IsZero() && begun.Before(old)
		if drop && c.Settled() {
			finished--
		}
		return drop
	})
	dropOwed(s)
	return true
}

// doubt reports in sure whether certainly no function posts the batch without a lease. If
// s has nothing about the batch yet, doubt notes the present time in s, and noted is true.
func doubt(s *storage.Session, b storage.Batch) (sure, noted bool) {
	c := cursorOf(s, b.Stream)
	now := time.Now()
	switch {
	case c != nil && (c.Final || c.Index >= b.Last()):
		return true, false // the batch was pushed
	case c != nil && !c.Live:
		return !heldAt(s.Pusher, now), false
	case c != nil && c.Index >= b.First-1 && !c.Since.IsZero():
		age := now.Sub(c.Since)
		return age >= inDoubt || age < -maxSkew, false
	}
	owe(s, storage.Cursor{Stream: b.Stream, Index: b.First - 1, Live: true, Since: now})
	return false, true
}

// heldAt reports whether a lease is held. It ignores a lease that ends later than any
// valid one: a function with a wrong clock has written it.
func heldAt(l storage.Lease, now time.Time) bool {
	return l.Until.After(now) && l.Until.Before(now.Add(pushLease+maxSkew))
}

// dropOwed drops the entries of the oldest request streams when there are too many. Their
// owed events are not pushed any more. They stay in the log for a client that asks for them
// by an event id. A late appender to such a stream adds a new entry for its own events.
func dropOwed(s *storage.Session) {
	var owed []storage.Cursor
	for _, c := range s.Pushed {
		if !c.Settled() && c.Stream != storage.Standalone && !c.Stream.Time().IsZero() {
			owed = append(owed, c)
		}
	}
	if len(owed) <= keptOwed {
		return
	}
	slices.SortStableFunc(owed, func(a, b storage.Cursor) int { return a.Stream.Time().Compare(b.Stream.Time()) })
	drop := map[storage.StreamID]bool{}
	for _, c := range owed[:len(owed)-keptOwed] {
		drop[c.Stream] = true
	}
	s.Pushed = slices.DeleteFunc(s.Pushed, func(c storage.Cursor) bool { return drop[c.Stream] })
}

func without(conns []string, conn string) []string {
	return slices.DeleteFunc(slices.Clone(conns), func(c string) bool { return c == conn })
}

// connectionLife is how long a connection's record is kept. API Gateway lets a connection
// live for 2 h at most.
const connectionLife = 130 * time.Minute
