package sessions

import (
	"slices"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// listener is the place of a GET at the standalone stream. One GET of a session, the primary,
// holds the lease and gets the events. The others are standbys: they stand in the session's
// record, oldest first, and get nothing until the lease is free. So two GETs never take the
// stream from one another.
type listener struct {
	nonce   string
	until   time.Time       // when this GET plans to close
	from    storage.EventID // the event id that the client sent, zero if none
	again   time.Time       // when to ask for the lease again
	held    bool
	waits   bool             // this GET is a standby
	current bool             // it has read all stored events, so further events are new
	record  *storage.Session // the session as it was last read, nil once used
	read    time.Time        // when record was read
}

const (
	// graceRetries is how long a lease stays reserved for its holder's client after the
	// lease has run out, in multiples of the pace. That client was told to come back after
	// twice the pace. So it gets its place back, and reports its events before another
	// client could get them again.
	graceRetries = 5
	// stagger is how much later each standby tries to take a free lease than the standby
	// before it. So the oldest gets the lease, and the others need not write.
	stagger = 50 * time.Millisecond
	// lookEvery is the age at which a record is read again.
	lookEvery = 5 * time.Second
	// leaveWithin is how long the end of a lease may take to write.
	leaveWithin = 2 * time.Second
	// casTries is how many conflicts in a row a listener retries at once.
	casTries = 8
)

// owns reports whether the client's last poll holds the lease.
func (l *listener) owns(s storage.Session) bool {
	return l.from.Nonce != "" && s.Primary.Nonce == holderOf(l.from.Nonce)
}

// longestHold is how much longer than Limits.Hold a lease can last. It allows for a
// function that holds its response up to its own limit, and for clocks that differ.
const longestHold = 20 * time.Minute

// free returns the time from which any listener may take the lease. It ignores a lease
// that lasts longer than any valid one: a function with a wrong clock has written it. It also
// ignores one whose holder has ended without a word (see [Limits].Since).
func free(s storage.Session, limits Limits, now time.Time) time.Time {
	if s.Primary.Nonce == "" || s.Primary.Until.After(now.Add(limits.Hold+longestHold)) || s.Primary.Until.Add(-limits.Hold).Before(limits.Since) {
		return time.Time{}
	}
	return s.Primary.Until.Add(graceRetries * limits.Pace)
}

// others returns the standbys besides this listener and its client's last poll.
func (l *listener) others(s storage.Session, now time.Time) []storage.Lease {
	return slices.DeleteFunc(slices.Clone(s.Standby), func(x storage.Lease) bool {
		return !x.Until.After(now) || x.Nonce == l.nonce || x.Nonce == holderOf(l.from.Nonce)
	})
}

func (l *listener) place(s storage.Session) int {
	return slices.IndexFunc(s.Standby, func(x storage.Lease) bool { return x.Nonce == l.nonce })
}

// wait delays the next claim until the lease should be free.
func (l *listener) wait(s storage.Session, limits Limits) {
	l.again = free(s, limits, time.Now()).Add(time.Duration(max(l.place(s), 0)) * stagger)
}

// A nonce is a random word, followed by the number of empty polls before it in base 36.
// So the retry can grow, although the store does not count polls. On the standalone
// stream the word is the lease holder's. Event ids have it too, so a client that was cut
// off comes back to its own lease.
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
