package meter

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Meter counts what the invocations of one Lambda process use. An invocation that ends is charged
// for everything since the previous end. If a process has several invocations at a time, only their
// sum is right. Meter implements storage.Meter and is safe for concurrent use.
type Meter struct {
	options Options

	mu     sync.Mutex
	spent  func() Stored // what the store has consumed; nil for no store
	before Stored
	now    tally
	warm   bool // an invocation has ended
}

var _ storage.Meter = (*Meter)(nil)

// Options configure a [Meter]. All are optional.
type Options struct {
	MemoryMB float64   // memory of the Lambda function; 256 by default
	Metrics  string    // namespace of CloudWatch metrics, "" for none; AWS bills them by name and server
	Started  time.Time // when the process started; zero if unknown
}

// tally counts what a storage.Account does not have.
type tally struct {
	messages float64 // posted messages, as AWS bills them
	pushed   int     // bytes posted to clients
	wakes    int
	boxStart time.Duration // from when a box was woken until its runner connected; zero if it did not
	boxes    int           // boxes that Due returned; 0 if nobody called it
}

// New returns a Meter for one process.
func New(o Options) *Meter {
	o.MemoryMB = cmp.Or(o.MemoryMB, Usual().MemoryMB)
	return &Meter{options: o}
}

// Store returns a store that counts the calls of s. The function spent returns what s
// has consumed so far. If spent is nil, the Meter estimates that (see [Estimate]).
func (m *Meter) Store(s storage.Store, spent func() Stored) storage.Store {
	if spent == nil {
		e := Estimate(s)
		s, spent = e, e.Spent
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spent, m.before = spent, spent()
	return &watched{Store: s, meter: m}
}

// watched is a store that finds out from the box records when a box is woken.
type watched struct {
	storage.Store
	meter *Meter

	mu       sync.Mutex
	starting storage.Box // the last starting box that was read
}

// Unwrap returns the inner store, which may have optional interfaces, such as [storage.Writable].
func (w *watched) Unwrap() storage.Store { return w.Store }

// Box remembers a box that is starting, because SaveBox needs the time at which that box was
// woken.
func (w *watched) Box(ctx context.Context, id storage.BoxID) (storage.Box, error) {
	b, err := w.Store.Box(ctx, id)
	if err == nil && b.State == storage.Starting {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.starting = b
	}
	return b, err
}

// SaveBox counts how often boxes are woken, and how long they take until their runner has connected.
func (w *watched) SaveBox(ctx context.Context, b storage.Box) error {
	err := w.Store.SaveBox(ctx, b)
	if err != nil {
		return err
	}
	w.mu.Lock()
	was := w.starting
	w.starting = storage.Box{}
	w.mu.Unlock()
	w.meter.count(func(t *tally) {
		switch {
		case b.State == storage.Starting:
			t.wakes++
		case b.State == storage.Awake && was.ID == b.ID && was.Gen == b.Gen:
			t.boxStart = b.Changed.Sub(was.Changed)
		}
	})
	return nil
}

// Due counts the boxes that it returns.
func (w *watched) Due(ctx context.Context) ([]storage.BoxID, error) {
	all, err := w.Store.Due(ctx)
	if err == nil {
		w.meter.count(func(t *tally) { t.boxes = len(all) })
	}
	return all, err
}

// Clients returns c with a Post that counts the messages.
func (m *Meter) Clients(c storage.Clients) storage.Clients { return &clients{c, m} }

// Runners returns p with a Post that counts the messages. They stay in the AWS region, so
// they do not count as traffic to the internet.
func (m *Meter) Runners(p storage.Poster) storage.Poster { return &runners{p, m} }

type clients struct {
	storage.Clients
	meter *Meter
}

// Post counts a message that the connection has accepted.
func (c *clients) Post(ctx context.Context, conn string, data []byte) error {
	err := c.Clients.Post(ctx, conn, data)
	if err == nil {
		c.meter.count(func(t *tally) { t.messages, t.pushed = t.messages+Messages(len(data)), t.pushed+len(data) })
	}
	return err
}

type runners struct {
	storage.Poster
	meter *Meter
}

// Post counts a message that the connection has accepted.
func (r *runners) Post(ctx context.Context, conn string, data []byte) error {
	err := r.Poster.Post(ctx, conn, data)
	if err == nil {
		r.meter.Posted(len(data))
	}
	return err
}

// wakeMessages is how many relay messages a box costs each time that it is woken and sleeps again:
// hello, pull, a status and bye, with the answers to three of them.
const wakeMessages = 7

// Woke counts a wake of a box of this program, with the messages that a relay would need for it.
func (m *Meter) Woke() {
	m.count(func(t *tally) {
		t.wakes++
		t.messages += wakeMessages
	})
}

// Posted counts a message to a box of this program, as if it was sent over a WebSocket.
func (m *Meter) Posted(bytes int) { m.count(func(t *tally) { t.messages += Messages(bytes) }) }

func (m *Meter) count(what func(*tally)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	what(&m.now)
}

// take ends an invocation. It returns what was counted since the previous end. The result start
// is how long the process had lived when its first invocation began. For other invocations start
// is 0.
func (m *Meter) take(took time.Duration) (t tally, stored Stored, start time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, m.now = m.now, tally{}
	if m.spent != nil {
		now := m.spent()
		stored, m.before = now.Minus(m.before), now
	}
	if !m.warm && !m.options.Started.IsZero() {
		start = max(0, time.Since(m.options.Started)-took)
	}
	m.warm = true
	return t, stored, start
}

// Spent implements storage.Meter.
func (m *Meter) Spent(a storage.Account) storage.Spent {
	t, stored, start := m.take(a.Took)
	return storage.Spent{Units: units(a, t, stored, m.options.MemoryMB), Wakes: t.wakes, Metrics: metrics(a, t, start, m.options.Metrics)}
}

// restUnit is how many bytes of an answer the price of one REST request covers.
const restUnit = 10 << 20

// units returns what AWS bills for one invocation, without the gateway's own log.
func units(a storage.Account, t tally, stored Stored, memoryMB float64) Units {
	billed := (a.Took + time.Millisecond - 1).Truncate(time.Millisecond)
	u := Units{
		Invocations: 1, GBSeconds: billed.Seconds() * memoryMB / 1024, Messages: t.messages, OutGB: GB(int64(t.pushed)),
		ReadUnits: stored.ReadUnits, WriteUnits: stored.WriteUnits, LogGB: GB(int64(Usual().LogBytes)),
	}
	switch a.Over {
	case storage.OverREST:
		u.Requests = 1 + float64(max(0, a.Out-1)/restUnit)
		u.OutGB += GB(int64(a.Out))
	case storage.OverSocket, storage.OverRelay:
		for _, size := range []int{a.In, a.Out} {
			if size > 0 {
				u.Messages += Messages(size)
			}
		}
		if a.Over == storage.OverSocket {
			u.OutGB += GB(int64(a.Out))
		}
	case storage.OverEvent:
	}
	return u
}
