package sessions

import (
	"slices"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// listener is the state of a GET on the standalone stream. One GET of a session, the primary,
// holds the lease in the session's record and gets the events. The others are standbys: the record
// lists them, oldest first, and they get nothing until the lease is free.
type listener struct {
	nonce   string           // a random word that stands for this GET, in the lease and in event ids
	until   time.Time        // when this GET plans to close
	from    storage.EventID  // the event id that the client sent, zero if none
	again   time.Time        // when to try to take the lease again
	held    bool             // this GET is the primary
	waits   bool             // this GET is a standby
	current bool             // this GET has returned all events that were stored when it began
	record  *storage.Session // the session as last read; nil after claim has used it
	read    time.Time        // when record was read
}

const (
	// graceRetries is a time after the end of a lease, in multiples of Pace. Until then only
	// the client of its holder may take the lease. That client was told to come back after twice the
	// pace, and will name its last event.
	graceRetries = 5
	// stagger is how much later a standby tries to take a free lease than the standby before it.
	// The oldest standby therefore gets the lease, and the others make no write that fails.
	stagger = 50 * time.Millisecond
	// lookEvery is the age at which listener.record is read again.
	lookEvery = 5 * time.Second
	// mostStandbys is how many GETs of one session may wait for the standalone stream.
	mostStandbys = 32
	// leaveWithin bounds the write that ends a lease.
	leaveWithin = 2 * time.Second
	// casTries is how often a listener tries a write that conflicts, without a pause.
	casTries = 8
)

// owns reports whether an earlier GET of the same client holds the lease.
func (l *listener) owns(s storage.Session) bool {
	return l.from.Nonce != "" && s.Primary.Nonce == holderOf(l.from.Nonce)
}

// longestHold is how much longer than [Limits.Hold] a lease can last: an instance may hold its response
// longer, and clocks differ.
const longestHold = 20 * time.Minute

// free returns the time from which any GET may take the lease. A lease does not count if it was taken
// before [Limits.Since]. One that ends later than any valid lease does not count either: an instance
// with a wrong clock has written it.
func free(s storage.Session, limits Limits, now time.Time) time.Time {
	if s.Primary.Nonce == "" || s.Primary.Until.After(now.Add(limits.Hold+longestHold)) || s.Primary.Until.Add(-limits.Hold).Before(limits.Since) {
		return time.Time{}
	}
	return s.Primary.Until.Add(graceRetries * Pace)
}

// others returns the standbys that have not expired, without this GET and earlier GETs of its client.
func (l *listener) others(s storage.Session, now time.Time) []storage.Lease {
	return slices.DeleteFunc(slices.Clone(s.Standby), func(x storage.Lease) bool {
		return !x.Until.After(now) || x.Nonce == l.nonce || x.Nonce == holderOf(l.from.Nonce)
	})
}

func (l *listener) place(s storage.Session) int {
	return slices.IndexFunc(s.Standby, func(x storage.Lease) bool { return x.Nonce == l.nonce })
}

// wait sets l.again to the time when this standby should try to take the lease.
func (l *listener) wait(s storage.Session, limits Limits) {
	l.again = free(s, limits, time.Now()).Add(time.Duration(max(l.place(s), 0)) * stagger)
}

// The nonce of an event id is nonceLen random characters, followed by the number of responses without an
// event so far, in base 36. The number lets the retry grow. On the standalone stream the random
// characters are the nonce of the lease. They show whether a client that comes back is the client of the
// lease's holder.
const nonceLen = 10

func nonceOf(word string, polls int) string {
	return word + strconv.FormatInt(int64(min(polls, 35)), 36)
}

func holderOf(nonce string) string { return nonce[:min(len(nonce), nonceLen)] }

func pollsOf(nonce string) int {
	if len(nonce) != nonceLen+1 {
		return 0
	}
	n, err := strconv.ParseInt(nonce[nonceLen:], 36, 32)
	if err != nil {
		return 0
	}
	return int(n)
}
