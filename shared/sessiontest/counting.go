package sessiontest

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Counts is what an operation cost: calls of the store, each one round trip. A
// compare-and-swap that was refused is a write; a call that failed is counted.
type Counts struct {
	Reads  int
	Writes int
	Waits  int   // calls of Wait, which are not reads of the operation
	Bytes  int64 // of events, messages, answers, parts, durable values and initialize parameters given to writes
	Calls  map[string]int
}

// Counting is a store that counts. Budgets of operations are asserted with it.
// Safe for concurrent use.
type Counting struct {
	inner session.Store

	mu     sync.Mutex
	counts Counts
}

var _ session.Store = (*Counting)(nil)

// NewCounting counts the calls of inner, which it closes when it is closed.
func NewCounting(inner session.Store) *Counting { return &Counting{inner: inner} }

// Counts returns what has been counted since the last Reset.
func (c *Counting) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.counts
	counts.Calls = maps.Clone(counts.Calls)
	return counts
}

// Reset begins to count anew.
func (c *Counting) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts = Counts{}
}

func (c *Counting) count(method string, reads, writes, waits, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Reads += reads
	c.counts.Writes += writes
	c.counts.Waits += waits
	c.counts.Bytes += int64(size)
	if c.counts.Calls == nil {
		c.counts.Calls = map[string]int{}
	}
	c.counts.Calls[method]++
}

func (c *Counting) read(method string)            { c.count(method, 1, 0, 0, 0) }
func (c *Counting) write(method string, size int) { c.count(method, 0, 1, 0, size) }

// Unwrap returns the store whose calls are counted.
func (c *Counting) Unwrap() session.Store { return c.inner }

// Close closes the inner store; it is not counted.
func (c *Counting) Close() error { return c.inner.Close() }

// Create is a write.
func (c *Counting) Create(ctx context.Context, s session.Session) error {
	c.write("Create", len(s.Init))
	return c.inner.Create(ctx, s)
}

// Load is a read.
func (c *Counting) Load(ctx context.Context, id session.ID, box session.BoxID) (session.Session, session.Box, error) {
	c.read("Load")
	return c.inner.Load(ctx, id, box)
}

// Save is a write.
func (c *Counting) Save(ctx context.Context, s session.Session) error {
	c.write("Save", len(s.Init))
	return c.inner.Save(ctx, s)
}

// List is a read.
func (c *Counting) List(ctx context.Context, tenant string, after session.ID, limit int) ([]session.Session, error) {
	c.read("List")
	return c.inner.List(ctx, tenant, after, limit)
}

// PutAnswer is a write.
func (c *Counting) PutAnswer(ctx context.Context, a session.Answer) (first bool, err error) {
	c.write("PutAnswer", len(a.Raw))
	return c.inner.PutAnswer(ctx, a)
}

// Answers is a read.
func (c *Counting) Answers(ctx context.Context, id session.ID, questions []string) ([]session.Answer, error) {
	c.read("Answers")
	return c.inner.Answers(ctx, id, questions)
}

// PutConnection is a write.
func (c *Counting) PutConnection(ctx context.Context, conn session.Connection) error {
	c.write("PutConnection", 0)
	return c.inner.PutConnection(ctx, conn)
}

// Connection is a read.
func (c *Counting) Connection(ctx context.Context, id string) (session.Connection, error) {
	c.read("Connection")
	return c.inner.Connection(ctx, id)
}

// DeleteConnection is a write.
func (c *Counting) DeleteConnection(ctx context.Context, id string) error {
	c.write("DeleteConnection", 0)
	return c.inner.DeleteConnection(ctx, id)
}

// CreateKey is a write.
func (c *Counting) CreateKey(ctx context.Context, k session.Key) error {
	c.write("CreateKey", 0)
	return c.inner.CreateKey(ctx, k)
}

// Key is a read.
func (c *Counting) Key(ctx context.Context, id string) (session.Key, error) {
	c.read("Key")
	return c.inner.Key(ctx, id)
}

// SaveKey is a write.
func (c *Counting) SaveKey(ctx context.Context, k session.Key) error {
	c.write("SaveKey", 0)
	return c.inner.SaveKey(ctx, k)
}

// ListKeys is counted as one read, though it may cost a driver several.
func (c *Counting) ListKeys(ctx context.Context, tenant, after string, limit int) ([]session.Key, error) {
	c.read("ListKeys")
	return c.inner.ListKeys(ctx, tenant, after, limit)
}

// PutEntryTicket is a write.
func (c *Counting) PutEntryTicket(ctx context.Context, t session.EntryTicket) error {
	c.write("PutEntryTicket", 0)
	return c.inner.PutEntryTicket(ctx, t)
}

// TakeEntryTicket is a write.
func (c *Counting) TakeEntryTicket(ctx context.Context, hash string) (session.EntryTicket, error) {
	c.write("TakeEntryTicket", 0)
	return c.inner.TakeEntryTicket(ctx, hash)
}

// LoadState is a read.
func (c *Counting) LoadState(ctx context.Context, k session.StateKey) (session.StateValue, error) {
	c.read("LoadState")
	return c.inner.LoadState(ctx, k)
}

// SaveState is a write.
func (c *Counting) SaveState(ctx context.Context, v session.StateValue) (session.StateValue, error) {
	c.write("SaveState", len(v.Data))
	return c.inner.SaveState(ctx, v)
}

// SaveHandshake is a write.
func (c *Counting) SaveHandshake(ctx context.Context, h session.Handshake) error {
	c.write("SaveHandshake", len(h.Result))
	return c.inner.SaveHandshake(ctx, h)
}

// Handshake is a read.
func (c *Counting) Handshake(ctx context.Context, digest, version string) (session.Handshake, error) {
	c.read("Handshake")
	return c.inner.Handshake(ctx, digest, version)
}

// Append is a write.
func (c *Counting) Append(ctx context.Context, b session.Batch) error {
	size := 0
	for _, e := range b.Events {
		size += len(e)
	}
	c.write("Append", size)
	return c.inner.Append(ctx, b)
}

// Read is a read.
func (c *Counting) Read(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, limit int) (session.Page, error) {
	c.read("Read")
	return c.inner.Read(ctx, id, stream, after, limit)
}

// Tail is a read.
func (c *Counting) Tail(ctx context.Context, id session.ID, stream session.StreamID) (session.Tail, error) {
	c.read("Tail")
	return c.inner.Tail(ctx, id, stream)
}

// Newest is a read.
func (c *Counting) Newest(ctx context.Context, id session.ID) (session.StreamID, error) {
	c.read("Newest")
	return c.inner.Newest(ctx, id)
}

// Wait is counted apart.
func (c *Counting) Wait(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, until time.Time) (session.Page, error) {
	c.count("Wait", 0, 0, 1, 0)
	return c.inner.Wait(ctx, id, stream, after, until)
}

// Box is a read.
func (c *Counting) Box(ctx context.Context, id session.BoxID) (session.Box, error) {
	c.read("Box")
	return c.inner.Box(ctx, id)
}

// SaveBox is a write.
func (c *Counting) SaveBox(ctx context.Context, b session.Box) error {
	c.write("SaveBox", 0)
	return c.inner.SaveBox(ctx, b)
}

// PutItem is a write.
func (c *Counting) PutItem(ctx context.Context, it session.Item) (put bool, err error) {
	c.write("PutItem", len(it.Raw))
	return c.inner.PutItem(ctx, it)
}

// Release is a write.
func (c *Counting) Release(ctx context.Context, box session.BoxID, id session.StreamID, gen session.Generation) (released bool, err error) {
	c.write("Release", 0)
	return c.inner.Release(ctx, box, id, gen)
}

// SwapItem is a write.
func (c *Counting) SwapItem(ctx context.Context, was, it session.Item) (swapped bool, err error) {
	c.write("SwapItem", len(it.Raw))
	return c.inner.SwapItem(ctx, was, it)
}

// Claim is a write.
func (c *Counting) Claim(ctx context.Context, box session.BoxID, id session.StreamID, gen session.Generation) (session.Item, error) {
	c.write("Claim", 0)
	return c.inner.Claim(ctx, box, id, gen)
}

// Item is a read.
func (c *Counting) Item(ctx context.Context, box session.BoxID, id session.StreamID) (session.Item, error) {
	c.read("Item")
	return c.inner.Item(ctx, box, id)
}

// Items is a read.
func (c *Counting) Items(ctx context.Context, box session.BoxID) ([]session.Item, error) {
	c.read("Items")
	return c.inner.Items(ctx, box)
}

// DeleteItem is a write.
func (c *Counting) DeleteItem(ctx context.Context, box session.BoxID, id session.StreamID, gen session.Generation) error {
	c.write("DeleteItem", 0)
	return c.inner.DeleteItem(ctx, box, id, gen)
}

// Due is counted as one read, though it may cost a driver several.
func (c *Counting) Due(ctx context.Context) ([]session.BoxID, error) {
	c.read("Due")
	return c.inner.Due(ctx)
}

// PutPart is a write.
func (c *Counting) PutPart(ctx context.Context, p session.Part) error {
	c.write("PutPart", len(p.Data))
	return c.inner.PutPart(ctx, p)
}

// Parts is a read.
func (c *Counting) Parts(ctx context.Context, box session.BoxID, frame string) ([]session.Part, error) {
	c.read("Parts")
	return c.inner.Parts(ctx, box, frame)
}
