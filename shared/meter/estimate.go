package meter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// EstimateStore is a store that says what DynamoDB would have billed for its calls,
// told by what is given to it and what it answers: a read unit for each 4 KB begun
// of each record, a write unit for each 1 KB begun, one more where an index has to
// follow, and for Wait what the polls in that time would have cost, though this store
// may need none. Calls that failed count as one request. What the other store spends
// on keeping within the bounds of its log, and on what is written over or deleted where
// that was larger, is not in it. Safe for concurrent use.
type EstimateStore struct {
	session.Store

	mu      sync.Mutex
	spent   Stored
	session session.ID // the one loaded or saved last, and
	expires time.Time  // its expiry, by which an index stands
}

// Stored is what a store has consumed, in capacity units of DynamoDB.
type Stored struct {
	ReadUnits, WriteUnits float64 // with those of waits
	Polls                 float64 // the read units of waits
}

// Minus is what was consumed since.
func (s Stored) Minus(before Stored) Stored {
	return Stored{s.ReadUnits - before.ReadUnits, s.WriteUnits - before.WriteUnits, s.Polls - before.Polls}
}

var _ session.Store = (*EstimateStore)(nil)

// Estimate makes an EstimateStore, which closes the store when it is closed.
func Estimate(s session.Store) *EstimateStore { return &EstimateStore{Store: s} }

// Unwrap returns the store whose calls are estimated.
func (e *EstimateStore) Unwrap() session.Store { return e.Store }

// Spent is what has been consumed since Estimate.
func (e *EstimateStore) Spent() Stored {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.spent
}

const (
	readUnit  = 4 << 10
	writeUnit = 1 << 10
	// overhead is what a row has besides its record and data: keys, numbers, nonce.
	overhead = 150
	inlined  = 350 << 10 // what is longer stands in parts
)

func unitsOf(size, unit int) float64 { return float64(max(1, (size+unit-1)/unit)) }

func (e *EstimateStore) read(sizes ...int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, size := range sizes {
		e.spent.ReadUnits += unitsOf(size, readUnit)
	}
}

// write counts a row, with so many index rows that follow it.
func (e *EstimateStore) write(size, indexes int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	parts := 0.0
	if size > inlined {
		parts, size = unitsOf(size, writeUnit), overhead
	}
	e.spent.WriteUnits += parts + unitsOf(size, writeUnit) + float64(indexes)
}

// sizeOf is that of a record as drivers keep it.
func sizeOf[T any](marshal func(T) ([]byte, error), v T, data int) int {
	record, err := marshal(v)
	if err != nil {
		return overhead + data // the store refuses it too
	}
	return overhead + len(record) + data
}

func sessionSize(s session.Session) int {
	return sizeOf(session.MarshalSession, s, len(s.Init))
}

// Records that surely have less than a read unit are not encoded to be measured: what
// stands in JSON takes six bytes for one at most, and numbers, times and names of
// fields less than 1,500 in all.
const surely = (readUnit - overhead - 1500) / 6

func sessionRead(s session.Session) int {
	if len(s.Subscribed)+len(s.Shadows)+len(s.Conns)+len(s.Pushed) > 0 ||
		len(s.ID)+len(s.Server)+len(s.Digest)+len(s.Tenant)+len(s.Principal)+len(s.Props)+len(s.Version)+len(s.Init)+
			len(s.ServerInfo)+len(s.Params)+len(s.Primary.Nonce)+len(s.Level) > surely {
		return sessionSize(s)
	}
	return overhead
}

func boxRead(b session.Box) int {
	if len(b.ID)+len(b.Tenant)+len(b.Server)+len(b.Runner)+len(b.Task)+len(b.Conn)+len(b.Owner)+len(b.TokenHash)+
		len(b.Failure.Phase)+len(b.Failure.Detail)+len(b.Failure.Signal) > surely {
		return sizeOf(session.MarshalBox, b, 0)
	}
	return overhead
}

// moved says whether the expiry of a session is new, so that its index follows.
func (e *EstimateStore) moved(s session.Session) (indexes int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.session != s.ID || !e.expires.Equal(s.Expires) {
		indexes = 1
	}
	e.session, e.expires = s.ID, s.Expires
	return indexes
}

// Create is a write with an index.
func (e *EstimateStore) Create(ctx context.Context, s session.Session) error {
	_ = e.moved(s)
	e.write(sessionSize(s), 1)
	return e.Store.Create(ctx, s)
}

// Load is two reads.
func (e *EstimateStore) Load(ctx context.Context, id session.ID, box session.BoxID) (session.Session, session.Box, error) {
	s, b, err := e.Store.Load(ctx, id, box)
	e.read(sessionRead(s))
	if box != "" {
		e.read(boxRead(b))
	}
	if err == nil {
		_ = e.moved(s)
	}
	return s, b, err
}

// Save is a write, with an index if the expiry moves.
func (e *EstimateStore) Save(ctx context.Context, s session.Session) error {
	e.write(sessionSize(s), e.moved(s))
	return e.Store.Save(ctx, s)
}

// List is reads of an index.
func (e *EstimateStore) List(ctx context.Context, tenant string, after session.ID, limit int) ([]session.Session, error) {
	all, err := e.Store.List(ctx, tenant, after, limit)
	e.read(0)
	for _, s := range all {
		e.read(sessionSize(s))
	}
	return all, err
}

// PutAnswer is a write.
func (e *EstimateStore) PutAnswer(ctx context.Context, a session.Answer) (first bool, err error) {
	e.write(overhead+len(a.Raw), 0)
	return e.Store.PutAnswer(ctx, a)
}

// Answers is a read for each question.
func (e *EstimateStore) Answers(ctx context.Context, id session.ID, questions []string) ([]session.Answer, error) {
	all, err := e.Store.Answers(ctx, id, questions)
	for i := range questions {
		size := 0
		if i < len(all) {
			size = overhead + len(all[i].Raw)
		}
		e.read(size)
	}
	return all, err
}

// PutConnection is a write.
func (e *EstimateStore) PutConnection(ctx context.Context, c session.Connection) error {
	e.write(sizeOf(session.MarshalConnection, c, 0), 0)
	return e.Store.PutConnection(ctx, c)
}

// Connection is a read.
func (e *EstimateStore) Connection(ctx context.Context, id string) (session.Connection, error) {
	e.read(0)
	return e.Store.Connection(ctx, id)
}

// DeleteConnection is a write.
func (e *EstimateStore) DeleteConnection(ctx context.Context, id string) error {
	e.write(0, 0)
	return e.Store.DeleteConnection(ctx, id)
}

// CreateKey is a write with an index.
func (e *EstimateStore) CreateKey(ctx context.Context, k session.Key) error {
	e.write(sizeOf(session.MarshalKey, k, 0), 1)
	return e.Store.CreateKey(ctx, k)
}

// Key is a read.
func (e *EstimateStore) Key(ctx context.Context, id string) (session.Key, error) {
	e.read(0)
	return e.Store.Key(ctx, id)
}

// ListKeys is reads of an index.
func (e *EstimateStore) ListKeys(ctx context.Context, tenant, after string, limit int) ([]session.Key, error) {
	all, err := e.Store.ListKeys(ctx, tenant, after, limit)
	e.read(0)
	for _, k := range all {
		e.read(sizeOf(session.MarshalKey, k, 0))
	}
	return all, err
}

// SaveKey is a write.
func (e *EstimateStore) SaveKey(ctx context.Context, k session.Key) error {
	e.write(sizeOf(session.MarshalKey, k, 0), 0)
	return e.Store.SaveKey(ctx, k)
}

// PutEntryTicket is a write.
func (e *EstimateStore) PutEntryTicket(ctx context.Context, t session.EntryTicket) error {
	e.write(sizeOf(session.MarshalEntryTicket, t, 0), 0)
	return e.Store.PutEntryTicket(ctx, t)
}

// TakeEntryTicket is a write.
func (e *EstimateStore) TakeEntryTicket(ctx context.Context, hash string) (session.EntryTicket, error) {
	e.write(0, 0)
	return e.Store.TakeEntryTicket(ctx, hash)
}

// SaveHandshake is a write.
func (e *EstimateStore) SaveHandshake(ctx context.Context, h session.Handshake) error {
	e.write(overhead+len(h.Result), 0)
	return e.Store.SaveHandshake(ctx, h)
}

// Handshake is a read.
func (e *EstimateStore) Handshake(ctx context.Context, digest, version string) (session.Handshake, error) {
	h, err := e.Store.Handshake(ctx, digest, version)
	e.read(overhead + len(h.Result))
	return h, err
}

// Append is a write.
func (e *EstimateStore) Append(ctx context.Context, b session.Batch) error {
	size := overhead
	for _, event := range b.Events {
		size += len(event) + 3 // its length stands before it
	}
	e.write(size, 0)
	return e.Store.Append(ctx, b)
}

// Read is a read of the batches.
func (e *EstimateStore) Read(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, limit int) (session.Page, error) {
	p, err := e.Store.Read(ctx, id, stream, after, limit)
	e.read(pageSize(p))
	return p, err
}

func pageSize(p session.Page) (size int) {
	for _, event := range p.Events {
		size += len(event.Raw) + 3
	}
	return size + overhead
}

// Tail is a read.
func (e *EstimateStore) Tail(ctx context.Context, id session.ID, stream session.StreamID) (session.Tail, error) {
	e.read(0)
	return e.Store.Tail(ctx, id, stream)
}

// Newest is a read.
func (e *EstimateStore) Newest(ctx context.Context, id session.ID) (session.StreamID, error) {
	e.read(0)
	return e.Store.Newest(ctx, id)
}

// Wait is a read, and the polls before it.
func (e *EstimateStore) Wait(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, until time.Time) (session.Page, error) {
	begun := time.Now()
	p, err := e.Store.Wait(ctx, id, stream, after, until)
	polls := 0.0
	if waited := time.Since(begun); waited > 2*time.Millisecond { // else the first look has found it
		polls = float64(Polls(waited) - 1)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	polls += unitsOf(pageSize(p), readUnit)
	e.spent.ReadUnits += polls
	e.spent.Polls += polls
	return p, err
}

// Box is a read.
func (e *EstimateStore) Box(ctx context.Context, id session.BoxID) (session.Box, error) {
	b, err := e.Store.Box(ctx, id)
	e.read(sizeOf(session.MarshalBox, b, 0))
	return b, err
}

// SaveBox is a write, with an index when the box begins to be looked after by the
// sweep, or ceases to.
func (e *EstimateStore) SaveBox(ctx context.Context, b session.Box) error {
	indexes := 0
	if b.State == session.Asleep || b.State == session.Starting && b.Attempt <= 1 {
		indexes = 1
	}
	e.write(sizeOf(session.MarshalBox, b, 0), indexes)
	return e.Store.SaveBox(ctx, b)
}

func itemSize(it session.Item) int { return sizeOf(session.MarshalItem, it, len(it.Raw)) }

// PutItem is a write with an index.
func (e *EstimateStore) PutItem(ctx context.Context, it session.Item) (put bool, err error) {
	e.write(itemSize(it), 1)
	return e.Store.PutItem(ctx, it)
}

// Claim is a write.
func (e *EstimateStore) Claim(ctx context.Context, box session.BoxID, id session.StreamID, gen session.Generation) (session.Item, error) {
	it, err := e.Store.Claim(ctx, box, id, gen)
	e.write(itemSize(it), 0)
	return it, err
}

// Release is a write.
func (e *EstimateStore) Release(ctx context.Context, box session.BoxID, id session.StreamID, gen session.Generation) (released bool, err error) {
	e.write(0, 0)
	return e.Store.Release(ctx, box, id, gen)
}

// SwapItem is a write.
func (e *EstimateStore) SwapItem(ctx context.Context, was, it session.Item) (swapped bool, err error) {
	e.write(itemSize(it), 0)
	return e.Store.SwapItem(ctx, was, it)
}

// Item is a read.
func (e *EstimateStore) Item(ctx context.Context, box session.BoxID, id session.StreamID) (session.Item, error) {
	it, err := e.Store.Item(ctx, box, id)
	size := 0
	if !errors.Is(err, session.NotFound) {
		size = itemSize(it)
	}
	e.read(size)
	return it, err
}

// Items is a read of all together.
func (e *EstimateStore) Items(ctx context.Context, box session.BoxID) ([]session.Item, error) {
	all, err := e.Store.Items(ctx, box)
	size := 0
	for _, it := range all {
		size += itemSize(it)
	}
	e.read(size)
	return all, err
}

// DeleteItem is a write with an index.
func (e *EstimateStore) DeleteItem(ctx context.Context, box session.BoxID, id session.StreamID, gen session.Generation) error {
	e.write(0, 1)
	return e.Store.DeleteItem(ctx, box, id, gen)
}

// Due is a read of an index.
func (e *EstimateStore) Due(ctx context.Context) ([]session.BoxID, error) {
	all, err := e.Store.Due(ctx)
	e.read(len(all) * overhead)
	return all, err
}

// LoadState is a read.
func (e *EstimateStore) LoadState(ctx context.Context, k session.StateKey) (session.StateValue, error) {
	v, err := e.Store.LoadState(ctx, k)
	e.read(overhead + len(v.Data))
	return v, err
}

// SaveState is a write.
func (e *EstimateStore) SaveState(ctx context.Context, v session.StateValue) (session.StateValue, error) {
	e.write(overhead+len(v.Data), 0)
	return e.Store.SaveState(ctx, v)
}

// PutPart is a write.
func (e *EstimateStore) PutPart(ctx context.Context, p session.Part) error {
	e.write(overhead+len(p.Data), 0)
	return e.Store.PutPart(ctx, p)
}

// Parts is a read of all together.
func (e *EstimateStore) Parts(ctx context.Context, box session.BoxID, frame string) ([]session.Part, error) {
	all, err := e.Store.Parts(ctx, box, frame)
	size := 0
	for _, p := range all {
		size += overhead + len(p.Data)
	}
	e.read(size)
	return all, err
}
