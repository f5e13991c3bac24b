package sessions

import (
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// An event is owed to a WebSocket client if it is in the log and was not delivered, because the
// connection of its request was closed. The session's record has a cursor for the stream of an owed
// event, which says how far the stream was delivered (Pushed). The record also has the connections that
// may get the rest (Conns), and a lease of the instance that pushes the rest (Pusher). The rules:
//
//   - The instance that finds a connection closed adds the cursor, once. From then on events of the
//     stream are delivered only by the holder of the lease. The cursor stays when all was
//     delivered, so that an instance that appends a later event finds it.
//   - The holder of the lease posts an event first and then moves the cursor. If it dies in between,
//     the next holder posts that page again.
//   - An instance that appends events returns when they were delivered or the session has no
//     connection. When a box hears that its events are stored, the client has got them, or the
//     record says that they are owed.
//   - A client that comes back and names its last events sets the cursors and ends the lease, because
//     its holder was posting to a connection that is closed.
//
// The instance that writes a batch to a slow connection posts events for one second. The holder
// of the lease delivers the rest. When all is delivered, the cursor becomes Live, and later
// events are posted directly again.
//
// A box that hears nothing sends its batch again, while the first instance may still be posting it. An
// instance that finds the batch in the log posts nothing, records the time in the cursor (Since), and
// does not answer the box. When the box sends the batch again some seconds later, the first instance has
// answered or has added a cursor. If it has done neither, it is dead, and the batch is posted once more.
const (
	straight     = time.Second                            // how long the instance that writes a batch posts it itself
	onePost      = 2 * time.Second                        // how much longer than straight the last post may take
	inDoubt      = 4 * time.Second                        // an instance posts a batch no longer than this; a runner waits longer before it repeats the batch
	maxSkew      = time.Minute                            // the greatest difference between the clocks of two instances
	pushLease    = 30 * time.Second                       // how long the lease lasts; its holder extends it after each page
	pushPage     = 100                                    // most events of a page; the cursor is written after each page
	toNote       = 5 * time.Second                        // time that an instance reserves to record how far it has pushed
	keptFinished = 32                                     // how many cursors without owed events, or of old streams, a record keeps
	keptOwed     = 1024                                   // how many cursors with owed events a record keeps; more would not fit a row of the store
	comingUp     = storage.ConnectTimeout + 2*time.Second // how long after $connect API Gateway may answer 410 for a connection that is not ready yet
	pushRetry    = 50 * time.Millisecond
	streamLife   = 7 * 24 * time.Hour // a request stream that is older is old: the log has probably lost its owed events
)

func cursorOf(s *storage.Session, stream storage.StreamID) *storage.Cursor {
	for i := range s.Pushed {
		if s.Pushed[i].Stream == stream {
			return &s.Pushed[i]
		}
	}
	return nil
}

// owe adds c, and drops cursors that are no longer needed. If the stream has a Live cursor, c replaces it, at
// the higher index of the two: the events up to either were posted. owe does nothing if the stream has a
// cursor that is not Live. It reports whether s changed.
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
	prune(s)
	return true
}

// prune drops the oldest cursors if there are too many. Owed events of a stream without a cursor are not
// pushed any more, but stay in the log for a client that asks for them by an event id.
func prune(s *storage.Session) {
	var finished, owed []storage.StreamID
	for _, c := range s.Pushed {
		switch begun := c.Stream.Time(); {
		case c.Settled() || !begun.IsZero() && time.Since(begun) > streamLife:
			finished = append(finished, c.Stream)
		case !begun.IsZero():
			owed = append(owed, c.Stream)
		}
	}
	slices.Sort(owed) // by time; finished has the order of the record
	drop := slices.Concat(finished[:max(0, len(finished)-keptFinished)], owed[:max(0, len(owed)-keptOwed)])
	s.Pushed = slices.DeleteFunc(s.Pushed, func(c storage.Cursor) bool { return slices.Contains(drop, c.Stream) })
}

// doubt is called for a batch that is in the log already. If sure is true, no other instance can
// be posting the batch. noted is true if doubt has changed s: the stream's cursor is now in doubt (Since).
func doubt(s *storage.Session, b storage.Batch) (sure, noted bool) {
	c := cursorOf(s, b.Stream)
	now := time.Now()
	switch {
	case c != nil && (c.Final || c.Index >= b.Last()):
		return true, false // the batch was pushed already
	case c != nil && !c.Live:
		return !heldAt(s.Pusher, now), false
	case c != nil && c.Index >= b.First-1 && !c.Since.IsZero():
		age := now.Sub(c.Since)
		return age >= inDoubt || age < -maxSkew, false
	}
	owe(s, storage.Cursor{Stream: b.Stream, Index: b.First - 1, Live: true, Since: now})
	return false, true
}

// heldAt reports whether a Pusher lease is held at a time. A lease that ends later than any valid one
// does not count: an instance with a wrong clock has written it.
func heldAt(l storage.Lease, now time.Time) bool {
	return l.Until.After(now) && l.Until.Before(now.Add(pushLease+maxSkew))
}

func without(conns []string, conn string) []string {
	return slices.DeleteFunc(slices.Clone(conns), func(c string) bool { return c == conn })
}

// connectionLife is how long a connection's record is kept. API Gateway lets a connection
// live for 2 h at most.
const connectionLife = 130 * time.Minute
