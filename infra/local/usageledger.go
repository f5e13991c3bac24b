package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/fleet/ecs"
	"github.com/dormouse-mcp/dormouse/shared/meter"
)

// UsageFile is the file in the data folder that holds what was counted up to the end
// of the last Run, and, while one is up, up to a minute ago.
const UsageFile = "usage.json"

// saveEvery is how often the ledger is written while something happens.
const saveEvery = time.Minute

// maxOwners bounds the ledger: sessions beyond it are counted for their server and
// tenant only.
const maxOwners = 10_000

// Owner is whom something is billed for: a session; or, without one, what a server and
// tenant have in common, which are boxes; or, without these, nobody: sweeps, and who
// was turned away.
type Owner struct {
	Server  string `json:"server,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	Session string `json:"session,omitempty"`
}

// Share is what one owner has used.
type Share struct {
	Owner
	Units meter.Units `json:"units"`
}

// Bill is what AWS would have billed for all that a data folder has seen.
//
// Functions say in their log lines for whom they ran, and what the gateways and the store
// would have billed. dormouse run counts the time of connections and of boxes itself. The
// starts of function processes are not counted.
type Bill struct {
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
	Shares []Share   `json:"shares"` // the one that used most first
}

// Total is what all owners have used together.
func (b Bill) Total() (u meter.Units) {
	for _, s := range b.Shares {
		u = u.Plus(s.Units)
	}
	return u
}

// ledger adds up what lines and boxes say. It is safe for concurrent use.
type ledger struct {
	size func(server string) meter.BoxSize

	mu      sync.Mutex
	since   time.Time
	shares  map[Owner]meter.Units
	conns   map[string]open
	changed bool
}

// open is an open connection, and whose it is.
type open struct {
	Owner
	since time.Time
}

func newLedger(size func(string) meter.BoxSize, saved Bill) *ledger {
	l := &ledger{size: size, since: saved.Since, shares: map[Owner]meter.Units{}, conns: map[string]open{}}
	for _, s := range saved.Shares {
		l.shares[s.Owner] = s.Units
	}
	return l
}

// give adds to what an owner has used.
func (l *ledger) give(o Owner, u meter.Units) {
	if _, known := l.shares[o]; !known && o.Session != "" && len(l.shares) >= maxOwners {
		o.Session = ""
	}
	l.shares[o] = l.shares[o].Plus(u)
	l.changed = true
}

// line takes a log line of a function. Those of boxes are not to be believed.
func (l *ledger) line(text string) {
	if !strings.Contains(text, `"units":{`) {
		return
	}
	if said, ok := meter.ReadLine([]byte(text)); ok {
		l.said(said)
	}
}

func (l *ledger) said(said meter.Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := Owner{said.Server, said.Tenant, said.Session}
	if said.Tenant == "" { // nobody was let in, whatever was asked for
		o = Owner{}
	}
	l.give(o, said.Units)
	if c, known := l.conns[said.Conn]; said.Conn != "" && known && said.Tenant != "" {
		l.conns[said.Conn] = open{o, c.since}
	}
}

// spending is a slog.Handler that has a ledger take the lines that say what was used.
type spending struct {
	slog.Handler
	ledger *ledger
}

// Handle passes every line on.
func (s spending) Handle(ctx context.Context, r slog.Record) error {
	var said meter.Line
	counted := false
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "server":
			said.Server = a.Value.String()
		case "tenant":
			said.Tenant = a.Value.String()
		case "session_id":
			said.Session = a.Value.String()
		case "connection_id":
			said.Conn = a.Value.String()
		case "units":
			said.Units, counted = a.Value.Any().(meter.Units)
		}
		return true
	})
	if counted {
		s.ledger.said(said)
	}
	return s.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (s spending) WithAttrs(attrs []slog.Attr) slog.Handler {
	return spending{s.Handler.WithAttrs(attrs), s.ledger}
}

// WithGroup implements slog.Handler.
func (s spending) WithGroup(name string) slog.Handler {
	return spending{s.Handler.WithGroup(name), s.ledger}
}

// opened begins to look for whom a connection is; closed bills it.
func (l *ledger) opened(conn string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[conn] = open{since: time.Now()}
}

func (l *ledger) closed(conn string, lived time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.conns[conn].Owner
	delete(l.conns, conn)
	l.give(o, meter.Units{ConnectionMinutes: lived.Minutes()})
}

// stopped bills a box.
func (l *ledger) stopped(t fleet.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.give(ownerOf(t), l.task(t, t.Stopped))
}

// ownerOf is the tenant of a box and its server: a box is named by the two.
func ownerOf(t fleet.Status) Owner {
	return Owner{Server: t.Server, Tenant: strings.TrimSuffix(t.Box, "/"+t.Server)}
}

func (l *ledger) task(t fleet.Status, until time.Time) meter.Units {
	return meter.Task(until.Sub(t.Started).Seconds(), l.size(t.Server))
}

// bill is what was used up to now. running are boxes that run.
func (l *ledger) bill(now time.Time, running []fleet.Status) Bill {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := maps.Clone(l.shares)
	for _, c := range l.conns {
		all[c.Owner] = all[c.Owner].Plus(meter.Units{ConnectionMinutes: now.Sub(c.since).Minutes()})
	}
	for _, t := range running {
		if t.State != fleet.Stopped && !t.Started.IsZero() {
			o := ownerOf(t)
			all[o] = all[o].Plus(l.task(t, now))
		}
	}
	b := Bill{Since: l.since, Until: now, Shares: []Share{}}
	prices := meter.Published()
	for o, u := range all {
		b.Shares = append(b.Shares, Share{o, u})
	}
	slices.SortFunc(b.Shares, func(x, y Share) int {
		return cmp.Or(cmp.Compare(prices.Cost(y.Units), prices.Cost(x.Units)), cmp.Compare(x.Server+x.Tenant+x.Session, y.Server+y.Tenant+y.Session))
	})
	return b
}

// boxSize is what a server's box would have on AWS.
func (m *machine) boxSize(server string) meter.BoxSize {
	size := meter.DefaultBox()
	s, _ := m.servers.Server(server)
	f, err := ecs.Size{CPUs: cmp.Or(s.Box.CPUs, size.VCPUs), MemoryMB: cmp.Or(s.Box.MemoryMB, int(size.MemoryMB))}.Fargate()
	if err == nil { // else Fargate has no such task, and AWS would run none
		size.VCPUs, size.MemoryMB = f.CPUs, float64(f.MemoryMB)
	}
	return size
}

// openLedger takes up what earlier runs have counted, and writes it down from time to
// time.
func (m *machine) openLedger(ctx context.Context) error {
	path := filepath.Join(m.data, UsageFile)
	saved, err := readBill(path)
	if err != nil {
		return fmt.Errorf("%w; delete the file to count from now on", err)
	}
	if saved.Since.IsZero() {
		saved.Since = m.began
	}
	m.ledger = newLedger(m.boxSize, saved)
	m.spending = slog.New(spending{m.log.Handler(), m.ledger})
	go func() {
		tick := time.NewTicker(saveEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				m.saveBill(ctx, false)
			}
		}
	}()
	return nil
}

func (m *machine) bill(ctx context.Context) (Bill, error) {
	running, err := m.boxes.Tasks(ctx)
	return m.ledger.bill(time.Now(), running), err
}

// saveBill writes the bill down if anything has changed, or at the end, when no box
// runs any more.
func (m *machine) saveBill(ctx context.Context, end bool) {
	if m.ledger == nil || m.socket == nil || !m.ledger.take() && !end {
		return
	}
	var b Bill
	var err error
	if end {
		b = m.ledger.bill(time.Now(), nil)
	} else if b, err = m.bill(ctx); err != nil {
		m.log.Warn("what was used is not written down; it is tried again in a minute", "error", err)
		return
	}
	if err := writeBill(filepath.Join(m.data, UsageFile), b); err != nil {
		m.log.Warn("what was used is not written down", "error", err)
	}
}

// take says whether anything was counted since it was asked last.
func (l *ledger) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := l.changed
	l.changed = false
	return changed
}

func readBill(path string) (b Bill, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Bill{}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	if err != nil {
		return Bill{}, fmt.Errorf("what was used cannot be read from %s: %w", path, err)
	}
	return b, nil
}

func writeBill(path string, b Bill) error {
	text, err := json.MarshalIndent(b, "", " ")
	if err != nil {
		return err
	}
	return writeDurably(path, text)
}

// ReadBill asks the Run that uses a data folder, or else reads what the last one has
// left. Since is zero if nothing was ever counted there.
func ReadBill(ctx context.Context, data string) (b Bill, err error) {
	if up, err := ask(ctx, data, "bill", &b); up || err != nil {
		return b, err
	}
	return readBill(filepath.Join(data, UsageFile))
}
