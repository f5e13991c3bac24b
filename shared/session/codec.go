package session

import (
	"bytes"
	"encoding/json"
	"time"
)

// What a Store takes and gives at most; see [Log] and [Boxes].
const (
	MaxBatchEvents = 1000      // events of one Append
	MaxBatchBytes  = 16 << 20  // bytes of one Append, and from which on a page ends
	MaxRead        = 1000      // events of one Read
	MaxWait        = MaxRead   // events of one Wait
	MaxPart        = 128 << 10 // bytes of one PutPart
)

// Lines returns the events of a batch joined by line feeds, which is how a driver
// keeps them; [Pages] takes them apart again. It is never nil.
//
// Errors: Invalid for a batch without events, one that begins before index 1, one
// with a negative Retry, and an event that is not one line; TooLarge over
// MaxBatchEvents or MaxBatchBytes.
func (b Batch) Lines() ([]byte, error) {
	size := 0
	for _, e := range b.Events {
		if bytes.IndexByte(e, '\n') >= 0 {
			return nil, Errorf(Invalid, "an event holds a line feed; an event is one line of JSON")
		}
		size += len(e)
	}
	switch {
	case b.First < 1 || len(b.Events) == 0:
		return nil, Errorf(Invalid, "a batch of %d events at index %d; it must have at least one and begin at 1 or later", len(b.Events), b.First)
	case b.Retry < 0:
		return nil, Errorf(Invalid, "a batch with a retry of %s; it must not be negative", b.Retry)
	case len(b.Events) > MaxBatchEvents || size > MaxBatchBytes:
		return nil, Errorf(TooLarge, "a batch of %d events with %d bytes; the limits are %d events and %d bytes",
			len(b.Events), size, MaxBatchEvents, MaxBatchBytes)
	}
	return append(make([]byte, 0, size+len(b.Events)-1), bytes.Join(b.Events, []byte{'\n'})...), nil
}

// Last is the index of the last event of a batch.
func (b Batch) Last() Index { return b.First + Index(len(b.Events)) - 1 }

// Repeated is what Append answers for a batch that is there already.
func (b Batch) Repeated() error {
	if b.Once {
		return Errorf(Duplicate, "index %d of the stream has this batch already", b.First)
	}
	return nil
}

// Pages makes one [Page] out of the batches of a stream, which are given to it in
// order, each at most once; batches that are gone are left out. A page ends, with
// More, when it holds as many events as it may or MaxBatchBytes, and before a
// hole, so that only the front of a page can be a gap.
type Pages struct {
	after Index
	limit int
	size  int
	page  Page
}

// NewPages begins a page of events strictly after a cursor. A limit outside 1 to
// MaxRead is moved into it, a negative cursor is 0.
func NewPages(after Index, limit int) *Pages {
	return &Pages{after: max(after, 0), limit: min(max(limit, 1), MaxRead)}
}

// Wants says whether a batch is needed: one that ends at the cursor or before it
// is not, nor is one that does not fit on the page any more. more is false when
// no batch behind this one is needed either.
func (p *Pages) Wants(first Index, n int) (wanted, more bool) {
	if first+Index(n)-1 <= p.after {
		return false, true
	}
	have := len(p.page.Events)
	hole := have > 0 && first > p.page.Events[have-1].Index+1
	if hole || p.full() {
		p.page.More = true
		return false, false
	}
	return true, true
}

func (p *Pages) full() bool { return len(p.page.Events) == p.limit || p.size >= MaxBatchBytes }

// Add puts the events of a batch that is wanted on the page: n of them from index
// first on, as [Batch.Lines] joined them; final and retry are what its last event
// carries. The page keeps parts of lines. more is false when the page is full.
func (p *Pages) Add(first Index, n int, final bool, retry time.Duration, lines []byte) (more bool) {
	for i := range n {
		var raw []byte
		raw, lines, _ = bytes.Cut(lines, []byte{'\n'})
		e := Event{Index: first + Index(i), Raw: raw[:len(raw):len(raw)]}
		if i == n-1 {
			e.Final, e.Retry = final, retry
		}
		if e.Index <= p.after {
			continue
		}
		if p.full() {
			p.page.More = true
			return false
		}
		if len(p.page.Events) == 0 {
			p.page.Gap = e.Index > p.after+1
		}
		p.page.Events = append(p.page.Events, e)
		p.size += len(raw)
	}
	return true
}

// Page is what has been put together.
func (p *Pages) Page() Page { return p.page }

// MarshalSession is the JSON of a session without Rev and Init: a driver keeps
// those beside it, Init because encoding/json would rewrite it.
//
// Errors: Invalid for what JSON cannot hold, which are times outside the years 0
// to 9999.
func MarshalSession(s Session) ([]byte, error) {
	s.Rev, s.Init = 0, nil
	return marshal(s)
}

// UnmarshalSession reads what [MarshalSession] wrote.
func UnmarshalSession(record []byte) (Session, error) {
	var s Session
	err := json.Unmarshal(record, &s)
	return s, err
}

// MarshalBox is the JSON of a box record without Rev. Errors: Invalid as
// [MarshalSession].
func MarshalBox(b Box) ([]byte, error) {
	b.Rev = 0
	return marshal(b)
}

// UnmarshalBox reads what [MarshalBox] wrote.
func UnmarshalBox(record []byte) (Box, error) {
	var b Box
	err := json.Unmarshal(record, &b)
	return b, err
}

// itemRecord is an Item as a record. The request ids are bytes here, because
// encoding/json would rewrite them.
type itemRecord struct {
	Address  Address
	Requests [][]byte `json:",omitempty"`
	NotAfter time.Time
	Created  time.Time

	Round     int        `json:",omitempty"`
	Questions []Question `json:",omitempty"`
	Base      Index      `json:",omitempty"`
}

// MarshalItem is the JSON of what only SwapItem changes of an item: all but its key,
// State, Gen and Raw. Errors: Invalid as [MarshalSession].
func MarshalItem(it Item) ([]byte, error) {
	r := itemRecord{
		Address: it.Address, NotAfter: it.NotAfter, Created: it.Created, Round: it.Round, Questions: it.Questions, Base: it.Base,
	}
	r.Address.Requests = nil
	for _, id := range it.Address.Requests {
		r.Requests = append(r.Requests, id)
	}
	return marshal(r)
}

// UnmarshalItem sets in an item what [MarshalItem] wrote.
func UnmarshalItem(record []byte, it *Item) error {
	var r itemRecord
	if err := json.Unmarshal(record, &r); err != nil {
		return err
	}
	it.Address, it.NotAfter, it.Created = r.Address, r.NotAfter, r.Created
	it.Round, it.Questions, it.Base = r.Round, r.Questions, r.Base
	for _, id := range r.Requests {
		it.Address.Requests = append(it.Address.Requests, json.RawMessage(id))
	}
	return nil
}

// MarshalConnection is the JSON of a connection. Errors: Invalid as
// [MarshalSession].
func MarshalConnection(c Connection) ([]byte, error) { return marshal(c) }

// UnmarshalConnection reads what [MarshalConnection] wrote.
func UnmarshalConnection(record []byte) (Connection, error) {
	var c Connection
	err := json.Unmarshal(record, &c)
	return c, err
}

func unmarshal[T any](record []byte) (T, error) {
	var v T
	err := json.Unmarshal(record, &v)
	return v, err
}

func marshal(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, Errorf(Invalid, "the record cannot be stored; see that its times are in the years 0 to 9999").Because(err)
	}
	return b, nil
}
