package sessiontest

import (
	"context"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Fault is what Faulty did to a call. It is the cause of the Unavailable error
// the caller got: errors.Is(err, sessiontest.Unanswered).
type Fault string

// The faults. They are told apart because a caller that repeats its call must be
// right after both.
const (
	Lost       Fault = "not stored"                      // the call did not reach the store
	Unanswered Fault = "stored, but the answer was lost" // the store did it; nobody was told
)

// Error returns the name of the fault.
func (f Fault) Error() string { return string(f) }

// Faults says how often calls fail: chances between 0 and 1.
type Faults struct {
	Lost       float64       // of an Unavailable before the call
	Unanswered float64       // of an Unavailable after the call
	Slow       float64       // of a delay before the call
	Delay      time.Duration // the longest such delay
}

// Faulty is a store that fails as a store in another place does, by a seed. The
// same calls in the same order fail the same way. Safe for concurrent use.
type Faulty struct {
	inner session.Store

	mu     sync.Mutex
	random *rand.Rand
	all    Faults
	by     map[string]Faults
	done   map[Fault]int
}

var _ session.Store = (*Faulty)(nil)

// NewFaulty makes the calls of inner fail. It closes inner when it is closed;
// that never fails.
func NewFaulty(inner session.Store, seed uint64, all Faults) *Faulty {
	return &Faulty{
		inner: inner, random: rand.New(rand.NewPCG(seed, 0)), all: all,
		by: map[string]Faults{}, done: map[Fault]int{},
	}
}

// Set changes how often calls fail from now on: those of one method of
// session.Store, or with "" all that are not set by name. It panics if there is
// no such method.
func (f *Faulty) Set(method string, faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if method == "" {
		f.all = faults
		return
	}
	if _, ok := reflect.TypeFor[session.Store]().MethodByName(method); !ok {
		panic("sessiontest: session.Store has no method " + method)
	}
	f.by[method] = faults
}

// Done says how many calls have failed in one way.
func (f *Faulty) Done(fault Fault) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done[fault]
}

// draw decides the fate of one call. It always draws as often, so that a changed
// rate does not change the fate of every call that follows.
func (f *Faulty) draw(method string) (lost, unanswered bool, delay time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	faults, ok := f.by[method]
	if !ok {
		faults = f.all
	}
	lost = f.random.Float64() < faults.Lost
	unanswered = f.random.Float64() < faults.Unanswered && !lost
	slow, part := f.random.Float64() < faults.Slow, f.random.Float64()
	if slow {
		delay = time.Duration(part * float64(faults.Delay))
	}
	if lost {
		f.done[Lost]++
	}
	if unanswered {
		f.done[Unanswered]++
	}
	return lost, unanswered, delay
}

// call is one call of a method under the faults.
func call[T any](ctx context.Context, f *Faulty, method string, do func() (T, error)) (T, error) {
	lost, unanswered, delay := f.draw(method)
	var none T
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return none, fault(method, ctx.Err())
		}
	}
	if lost {
		return none, fault(method, Lost)
	}
	v, err := do()
	if unanswered {
		return none, fault(method, Unanswered)
	}
	return v, err
}

func fault(method string, cause error) error {
	return session.Errorf(session.Unavailable, "the store did not answer %s; try again", method).Because(cause)
}

// run is call for a method that returns an error only.
func run(ctx context.Context, f *Faulty, method string, do func() error) error {
	_, err := call(ctx, f, method, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

// Unwrap returns the store whose calls fail.
func (f *Faulty) Unwrap() session.Store { return f.inner }

// Close closes the inner store.
func (f *Faulty) Close() error { return f.inner.Close() }

// Create is the inner store's, or fails.
func (f *Faulty) Create(ctx context.Context, s session.Session) error {
	return run(ctx, f, "Create", func() error { return f.inner.Create(ctx, s) })
}

// Load is the inner store's, or fails.
func (f *Faulty) Load(ctx context.Context, id session.ID, box session.BoxID) (session.Session, session.Box, error) {
	var b session.Box
	s, err := call(ctx, f, "Load", func() (s session.Session, err error) {
		s, b, err = f.inner.Load(ctx, id, box)
		return s, err
	})
	if session.CodeOf(err) == session.Unavailable {
		b = session.Box{}
	}
	return s, b, err
}

// Save is the inner store's, or fails.
func (f *Faulty) Save(ctx context.Context, s session.Session) error {
	return run(ctx, f, "Save", func() error { return f.inner.Save(ctx, s) })
}

// List is the inner store's, or fails.
func (f *Faulty) List(ctx context.Context, tenant string, after session.ID, limit int) ([]session.Session, error) {
	return call(ctx, f, "List", func() ([]session.Session, error) { return f.inner.List(ctx, tenant, after, limit) })
}

// PutAnswer is the inner store's, or fails.
func (f *Faulty) PutAnswer(ctx context.Context, a session.Answer) (first bool, err error) {
	return call(ctx, f, "PutAnswer", func() (bool, error) { return f.inner.PutAnswer(ctx, a) })
}

// Answers is the inner store's, or fails.
func (f *Faulty) Answers(ctx context.Context, id session.ID, questions []string) ([]session.Answer, error) {
	return call(ctx, f, "Answers", func() ([]session.Answer, error) { return f.inner.Answers(ctx, id, questions) })
}

// PutConnection is the inner store's, or fails.
func (f *Faulty) PutConnection(ctx context.Context, c session.Connection) error {
	return run(ctx, f, "PutConnection", func() error { return f.inner.PutConnection(ctx, c) })
}

// Connection is the inner store's, or fails.
func (f *Faulty) Connection(ctx context.Context, id string) (session.Connection, error) {
	return call(ctx, f, "Connection", func() (session.Connection, error) { return f.inner.Connection(ctx, id) })
}

// DeleteConnection is the inner store's, or fails.
func (f *Faulty) DeleteConnection(ctx context.Context, id string) error {
	return run(ctx, f, "DeleteConnection", func() error { return f.inner.DeleteConnection(ctx, id) })
}

// CreateKey is the inner store's, or fails.
func (f *Faulty) CreateKey(ctx context.Context, k session.Key) error {
	return run(ctx, f, "CreateKey", func() error { return f.inner.CreateKey(ctx, k) })
}

// Key is the inner store's, or fails.
func (f *Faulty) Key(ctx context.Context, id string) (session.Key, error) {
	return call(ctx, f, "Key", func() (session.Key, error) { return f.inner.Key(ctx, id) })
}

// SaveKey is the inner store's, or fails.
func (f *Faulty) SaveKey(ctx context.Context, k session.Key) error {
	return run(ctx, f, "SaveKey", func() error { return f.inner.SaveKey(ctx, k) })
}

// ListKeys is the inner store's, or fails.
func (f *Faulty) ListKeys(ctx context.Context, tenant, after string, limit int) ([]session.Key, error) {
	return call(ctx, f, "ListKeys", func() ([]session.Key, error) { return f.inner.ListKeys(ctx, tenant, after, limit) })
}

// PutEntryTicket is the inner store's, or fails.
func (f *Faulty) PutEntryTicket(ctx context.Context, t session.EntryTicket) error {
	return run(ctx, f, "PutEntryTicket", func() error { return f.inner.PutEntryTicket(ctx, t) })
}

// TakeEntryTicket is the inner store's, or fails.
func (f *Faulty) TakeEntryTicket(ctx context.Context, hash string) (session.EntryTicket, error) {
	return call(ctx, f, "TakeEntryTicket", func() (session.EntryTicket, error) { return f.inner.TakeEntryTicket(ctx, hash) })
}

// LoadState is the inner store's, or fails.
func (f *Faulty) LoadState(ctx context.Context, k session.StateKey) (session.StateValue, error) {
	return call(ctx, f, "LoadState", func() (session.StateValue, error) { return f.inner.LoadState(ctx, k) })
}

// SaveState is the inner store's, or fails.
func (f *Faulty) SaveState(ctx context.Context, v session.StateValue) (session.StateValue, error) {
	return call(ctx, f, "SaveState", func() (session.StateValue, error) { return f.inner.SaveState(ctx, v) })
}

// SaveHandshake is the inner store's, or fails.
func (f *Faulty) SaveHandshake(ctx context.Context, h session.Handshake) error {
	return run(ctx, f, "SaveHandshake", func() error { return f.inner.SaveHandshake(ctx, h) })
}

// Handshake is the inner store's, or fails.
func (f *Faulty) Handshake(ctx context.Context, digest, version string) (session.Handshake, error) {
	return call(ctx, f, "Handshake", func() (session.Handshake, error) { return f.inner.Handshake(ctx, digest, version) })
}

// Append is the inner store's, or fails.
func (f *Faulty) Append(ctx context.Context, b session.Batch) error {
	return run(ctx, f, "Append", func() error { return f.inner.Append(ctx, b) })
}

// Read is the inner store's, or fails.
func (f *Faulty) Read(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, limit int) (session.Page, error) {
	return call(ctx, f, "Read", func() (session.Page, error) { return f.inner.Read(ctx, id, stream, after, limit) })
}

// Tail is the inner store's, or fails.
func (f *Faulty) Tail(ctx context.Context, id session.ID, stream session.StreamID) (session.Tail, error) {
	return call(ctx, f, "Tail", func() (session.Tail, error) { return f.inner.Tail(ctx, id, stream) })
}

// Newest is the inner store's, or fails.
func (f *Faulty) Newest(ctx context.Context, id session.ID) (session.StreamID, error) {
	return call(ctx, f, "Newest", func() (session.StreamID, error) { return f.inner.Newest(ctx, id) })
}

// Wait is the inner store's, or fails: before it has begun to wait, or after.
func (f *Faulty) Wait(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, until time.Time) (session.Page, error) {
	return call(ctx, f, "Wait", func() (session.Page, error) { return f.inner.Wait(ctx, id, stream, after, until) })
}

// Box is the inner store's, or fails.
func (f *Faulty) Box(ctx context.Context, id session.BoxID) (session.Box, error) {
	return call(ctx, f, "Box", func() (session.Box, error) { return f.inner.Box(ctx, id) })
}

// SaveBox is the inner store's, or fails.
func (f *Faulty) SaveBox(ctx context.Context, b session.Box) error {
	return run(ctx, f, "SaveBox", func() error { return f.inner.SaveBox(ctx, b) })
}

// PutItem is the inner store's, or fails.
func (f *Faulty) PutItem(ctx context.Context, it session.Item) (put bool, err error) {
	return call(ctx, f, "PutItem", func() (bool, error) { return f.inner.PutItem(ctx, it) })
}

// Claim is the inner store's, or fails.
func (f *Faulty) Claim(ctx context.Context, box session.BoxID, id session.StreamID, gen session.Generation) (session.Item, error) {
	return call(ctx, f, "Claim", func() (session.Item, error) { return f.inner.Claim(ctx, box, id, gen) })
}

// Release is the inner store's, or fails.
func (f *Faulty) Release(ctx context.Context, box session.BoxID, id session.StreamID, gen session.Generation) (released bool, err error) {
	return call(ctx, f, "Release", func() (bool, error) { return f.inner.Release(ctx, box, id, gen) })
}

// SwapItem is the inner store's, or fails.
func (f *Faulty) SwapItem(ctx context.Context, was, it session.Item) (swapped bool, err error) {
	return call(ctx, f, "SwapItem", func() (bool, error) { return f.inner.SwapItem(ctx, was, it) })
}

// Item is the inner store's, or fails.
func (f *Faulty) Item(ctx context.Context, box session.BoxID, id session.StreamID) (session.Item, error) {
	return call(ctx, f, "Item", func() (session.Item, error) { return f.inner.Item(ctx, box, id) })
}

// Items is the inner store's, or fails.
func (f *Faulty) Items(ctx context.Context, box session.BoxID) ([]session.Item, error) {
	return call(ctx, f, "Items", func() ([]session.Item, error) { return f.inner.Items(ctx, box) })
}

// DeleteItem is the inner store's, or fails.
func (f *Faulty) DeleteItem(ctx context.Context, box session.BoxID, id session.StreamID, gen session.Generation) error {
	return run(ctx, f, "DeleteItem", func() error { return f.inner.DeleteItem(ctx, box, id, gen) })
}

// Due is the inner store's, or fails.
func (f *Faulty) Due(ctx context.Context) ([]session.BoxID, error) {
	return call(ctx, f, "Due", func() ([]session.BoxID, error) { return f.inner.Due(ctx) })
}

// PutPart is the inner store's, or fails.
func (f *Faulty) PutPart(ctx context.Context, p session.Part) error {
	return run(ctx, f, "PutPart", func() error { return f.inner.PutPart(ctx, p) })
}

// Parts is the inner store's, or fails.
func (f *Faulty) Parts(ctx context.Context, box session.BoxID, frame string) ([]session.Part, error) {
	return call(ctx, f, "Parts", func() ([]session.Part, error) { return f.inner.Parts(ctx, box, frame) })
}
