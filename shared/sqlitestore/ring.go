package sqlitestore

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// ring is what a ring brings along: a batch that stands in the log, so that who waits
// for it need not read it. The zero value brings nothing.
type ring struct {
	first session.Index
	n     int
	final bool
	retry time.Duration
	lines []byte
}

// maxRing bounds a datagram to a desk, in bytes: macOS takes no longer one.
const maxRing = 2048

// ringHead is what is in a datagram between the key and the lines: first, retry in
// milliseconds, n and final.
const ringHead = 8 + 8 + 4 + 1

// ringOf is the ring for a batch that was just written, with its lines. One that is
// large is read by who waits for it.
func ringOf(b session.Batch, lines []byte) ring {
	if 1+keyLength+ringHead+len(lines) > maxRing {
		return ring{}
	}
	return ring{first: b.First, n: len(b.Events), final: b.Final, retry: b.Retry.Truncate(time.Millisecond), lines: lines}
}

// append adds the ring to a datagram, if it brings anything.
func (r ring) append(b []byte) []byte {
	if r.n == 0 {
		return b
	}
	b = binary.BigEndian.AppendUint64(b, uint64(r.first))
	b = binary.BigEndian.AppendUint64(b, uint64(r.retry.Milliseconds()))
	b = binary.BigEndian.AppendUint32(b, uint32(r.n))
	if r.final {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	return append(b, r.lines...)
}

// readRing reads what append has added; what it cannot read brings nothing. It keeps
// part of b.
func readRing(b []byte) ring {
	if len(b) < ringHead {
		return ring{}
	}
	r := ring{
		first: session.Index(binary.BigEndian.Uint64(b)),
		retry: time.Duration(binary.BigEndian.Uint64(b[8:])) * time.Millisecond,
		n:     int(binary.BigEndian.Uint32(b[16:])),
		final: b[20] == 1,
		lines: b[ringHead:],
	}
	if r.first < 1 || r.n != bytes.Count(r.lines, []byte{'\n'})+1 {
		return ring{}
	}
	return r
}

// clone is the ring for one more waiter, who may change what it is given.
func (r ring) clone() ring {
	r.lines = bytes.Clone(r.lines)
	return r
}

// page is what a read after a cursor would find; ok is false if the ring does not
// know, because what it brings is not what comes next.
func (r ring) page(after session.Index) (p session.Page, ok bool) {
	if r.n == 0 || r.first != max(after, 0)+1 {
		return session.Page{}, false
	}
	pages := session.NewPages(after, session.MaxWait)
	pages.Add(r.first, r.n, r.final, r.retry, r.lines)
	return pages.Page(), true
}
