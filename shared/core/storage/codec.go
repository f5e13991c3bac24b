package storage

import (
	"bytes"
	"encoding/json"
	"time"
)

// maxIndex is the highest index with which a batch may begin. A runner, which may be hostile, chooses
// the index, and sums with it must not overflow.
const maxIndex = 1 << 53

// Lines returns the events of the batch joined by line feeds, as a driver stores them.
// [Pages] takes them apart again. The result is not nil. A single event is not copied: it may
// have megabytes.
//
// Errors: Invalid if there are no events, First is below 1 or over 2^53, Retry is negative, or an
// event has a line feed. TooLarge over MaxBatchEvents or MaxBatchBytes.
func (b Batch) Lines() ([]byte, error) {
	size := 0
	for _, e := range b.Events {
		if bytes.IndexByte(e, '\n') >= 0 {
			return nil, Errorf(Invalid, "an event holds a line feed; an event is one line of JSON")
		}
		size += len(e)
	}
	switch {
	case b.First < 1 || b.First > maxIndex || len(b.Events) == 0:
		return nil, Errorf(Invalid, "a batch of %d events at index %d; it must have at least one and begin at 1 or later, up to 2^53", len(b.Events), b.First)
	case b.Retry < 0:
		return nil, Errorf(Invalid, "a batch with a retry of %s; it must not be negative", b.Retry)
	case len(b.Events) > MaxBatchEvents || size > MaxBatchBytes:
		return nil, Errorf(TooLarge, "a batch of %d events with %d bytes; the limits are %d events and %d bytes",
			len(b.Events), size, MaxBatchEvents, MaxBatchBytes)
	}
	if len(b.Events) == 1 && size > 0 {
		return b.Events[0][:size:size], nil
	}
	lines := make([]byte, 0, size+len(b.Events)-1)
	for i, e := range b.Events {
		if i > 0 {
			lines = append(lines, '\n')
		}
		lines = append(lines, e...)
	}
	return lines, nil
}

// Last returns the index of the batch's last event.
func (b Batch) Last() Index { return b.First + Index(len(b.Events)) - 1 }

// Repeated returns what Append returns if the log has the batch already: nil, or Duplicate
// if Once is set.
func (b Batch) Repeated() error {
	if b.Once {
		return Errorf(Duplicate, "index %d of the stream has this batch already", b.First)
	}
	return nil
}

// Pages helps a driver to build a [Page] from the batches of a stream. The driver calls Wants and then
// Add for each stored batch, in order. The page ends, with More set, at its limit of events, at
// MaxBatchBytes, and before missing events.
type Pages struct {
	after Index
	limit int
	size  int
	page  Page
}

// NewPages begins a page of the events after a cursor, which counts as 0 if it is
// negative. limit is clamped to 1 to MaxRead.
func NewPages(after Index, limit int) *Pages {
	return &Pages{after: max(after, 0), limit: min(max(limit, 1), MaxRead)}
}

// Wants reports whether the page needs a batch of n events from index first. It does not if the batch
// ends at the cursor or before, or the page is full. If the page needs no later batch either, more is
// false.
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

// Add adds a batch for which Wants was true: n events from index first, joined as by
// [Batch.Lines]. final and retry are those of the last event. The page keeps slices of
// lines. If the page is full, more is false.
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

// Page returns the page that the calls of Add have built.
func (p *Pages) Page() Page { return p.page }

// MarshalSession returns a session as JSON, without Rev and Init. A driver stores those
// separately: encoding/json would rewrite Init.
//
// Errors: Invalid for a time outside the years 0 to 9999, which JSON cannot hold.
func MarshalSession(s Session) ([]byte, error) {
	s.Rev, s.Init = 0, nil
	return s.Later.join(Marshal(s))
}

// UnmarshalSession reads what [MarshalSession] wrote.
func UnmarshalSession(record []byte) (Session, error) {
	var s Session
	later, err := read(record, &s)
	s.Later = later
	return s, err
}

// MarshalBox returns a box record as JSON, without Rev. Errors: as [MarshalSession].
func MarshalBox(b Box) ([]byte, error) {
	b.Rev = 0
	return b.Later.join(Marshal(b))
}

// UnmarshalBox reads what [MarshalBox] wrote.
func UnmarshalBox(record []byte) (Box, error) {
	var b Box
	later, err := read(record, &b)
	b.Later = later
	return b, err
}

// itemRecord is the JSON of an Item. Its request ids are bytes, because encoding/json
// would rewrite them.
type itemRecord struct {
	Address  Address
	Requests [][]byte `json:",omitempty"`
	NotAfter time.Time
	Created  time.Time

	Round     int        `json:",omitempty"`
	Questions []Question `json:",omitempty"`
	Base      Index      `json:",omitempty"`
}

// MarshalItem returns an item as JSON, without its key, State, Gen and Raw, which a driver stores
// separately. Of the methods of [Items], only SwapItem changes this JSON. Errors: as [MarshalSession].
func MarshalItem(it Item) ([]byte, error) {
	r := itemRecord{
		Address: it.Address, NotAfter: it.NotAfter, Created: it.Created, Round: it.Round, Questions: it.Questions, Base: it.Base,
	}
	r.Address.Requests = nil
	for _, id := range it.Address.Requests {
		r.Requests = append(r.Requests, id)
	}
	return Marshal(r)
}

// UnmarshalItem sets the fields of an item that [MarshalItem] wrote.
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

// Unmarshal reads what [Marshal] wrote.
func Unmarshal[T any](record []byte) (T, error) {
	var v T
	err := json.Unmarshal(record, &v)
	return v, err
}

// Marshal returns a [Connection] or an [EntryTicket] as JSON. Errors: as [MarshalSession].
func Marshal[T any](v T) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, Errorf(Invalid, "the record cannot be stored; see that its times are in the years 0 to 9999").Because(err)
	}
	return b, nil
}
