// Package bill counts what AWS would have billed for the work of this machine. It
// reads the log lines of functions, and measures the time of connections and boxes.
package bill

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

	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/meter"
)

// File is the name of the ledger's file in the data folder. It has the counts up to
// the end of the last Run or, while a Run is up, up to a minute ago.
const File = "usage.json"

// saveEvery is how often the ledger is saved while counts change.
const saveEvery = time.Minute

// maxOwners limits the ledger. It counts sessions beyond that only for their server
// and tenant.
const maxOwners = 10_000

// Owner is the session that a use is billed for. Without a session, it is a server and
// a tenant, which share boxes. With none of them, it is the rest: sweeps, and callers
// that were turned away.
type Owner struct {
	Server  string `json:"server,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	Session string `json:"session,omitempty"`
}

// Share holds the use of one owner.
type Share struct {
	Owner
	Units meter.Units `json:"units"`
}

// Bill is what AWS would have billed for all work in a data folder.
//
// Functions log for whom they ran, and what the gateways and the store would have billed.
// dormouse run counts the time of connections and boxes itself. The starts of function
// processes are not counted.
type Bill struct {
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
	Shares []Share   `json:"shares"` // largest use first
}

// Total returns the use of all owners together.
func (b Bill) Total() (u meter.Units) {
	for _, s := range b.Shares {
		u = u.Plus(s.Units)
	}
	return u
}

// Ledger adds up the use of functions, connections and boxes. It is safe for
// concurrent use.
type Ledger struct {
	path    string // of its file
	size    func(server string) meter.BoxSize
	running func(context.Context) ([]fleet.Status, error) // lists the boxes
	log     *slog.Logger

	mu      sync.Mutex
	since   time.Time
	shares  map[Owner]meter.Units
	conns   map[string]open
	changed bool
}

// open is an open connection and its owner.
type open struct {
	Owner
	since time.Time
}

// Open continues the counts of earlier runs in a data folder. size returns the size of a
// server's box on AWS. running lists boxes; the ledger ignores those that do not run.
func Open(folder string, size func(server string) meter.BoxSize, running func(context.Context) ([]fleet.Status, error), log *slog.Logger) (*Ledger, error) {
	l := &Ledger{
		path: filepath.Join(folder, File), size: size, running: running, log: log,
		shares: map[Owner]meter.Units{}, conns: map[string]open{},
	}
	saved, err := Read(folder)
	if err != nil {
		return nil, fmt.Errorf("%w; delete the file to count from now on", err)
	}
	if l.since = saved.Since; l.since.IsZero() {
		l.since = time.Now()
	}
	for _, s := range saved.Shares {
		l.shares[s.Owner] = s.Units
	}
	return l, nil
}

// give adds to the use of an owner.
func (l *Ledger) give(o Owner, u meter.Units) {
	if _, known := l.shares[o]; !known && o.Session != "" && len(l.shares) >= maxOwners {
		o.Session = ""
	}
	l.shares[o] = l.shares[o].Plus(u)
	l.changed = true
}

// Line counts a log line of a function. Do not pass lines of boxes: servers could
// forge them.
func (l *Ledger) Line(text string) {
	if !strings.Contains(text, `"units":{`) {
		return
	}
	if said, ok := meter.ReadLine([]byte(text)); ok {
		l.said(said)
	}
}

func (l *Ledger) said(said meter.Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := Owner{said.Server, said.Tenant, said.Session}
	if said.Tenant == "" { // the caller was turned away, whatever server it named
		o = Owner{}
	}
	l.give(o, said.Units)
	if c, known := l.conns[said.Conn]; said.Conn != "" && known && said.Tenant != "" {
		l.conns[said.Conn] = open{o, c.since}
	}
}

// Watch returns a handler that passes every line to h, and counts the usage
// that lines report.
func (l *Ledger) Watch(h slog.Handler) slog.Handler { return watch{h, l} }

type watch struct {
	slog.Handler
	ledger *Ledger
}

// Handle implements slog.Handler.
func (s watch) Handle(ctx context.Context, r slog.Record) error {
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
func (s watch) WithAttrs(attrs []slog.Attr) slog.Handler {
	return watch{s.Handler.WithAttrs(attrs), s.ledger}
}

// WithGroup implements slog.Handler.
func (s watch) WithGroup(name string) slog.Handler {
	return watch{s.Handler.WithGroup(name), s.ledger}
}

// Opened notes a connection, whose owner a later line names.
func (l *Ledger) Opened(conn string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[conn] = open{since: time.Now()}
}

// Closed counts the time of a connection.
func (l *Ledger) Closed(conn string, lived time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.conns[conn].Owner
	delete(l.conns, conn)
	l.give(o, meter.Units{ConnectionMinutes: lived.Minutes()})
}

// Stopped counts the time of a box.
func (l *Ledger) Stopped(t fleet.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.give(ownerOf(t), l.task(t, t.Stopped))
}

// ownerOf returns the owner of a box. The box's name consists of its tenant and its
// server.
func ownerOf(t fleet.Status) Owner {
	return Owner{Server: t.Server, Tenant: strings.TrimSuffix(t.Box, "/"+t.Server)}
}

func (l *Ledger) task(t fleet.Status, until time.Time) meter.Units {
	return meter.Task(until.Sub(t.Started).Seconds(), l.size(t.Server))
}

// Bill returns the use up to now, including the boxes that run.
func (l *Ledger) Bill(ctx context.Context) (Bill, error) {
	running, err := l.running(ctx)
	return l.until(time.Now(), running), err
}

func (l *Ledger) until(now time.Time, running []fleet.Status) Bill {
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

// Keep saves the ledger from time to time until ctx ends.
func (l *Ledger) Keep(ctx context.Context) {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if !l.take() {
				continue
			}
			b, err := l.Bill(ctx)
			if err != nil {
				l.log.Warn("what was used is not written down; it is tried again in a minute", "error", err)
				continue
			}
			l.save(b)
		}
	}
}

// Close saves the ledger for the last time. All boxes must have stopped.
func (l *Ledger) Close() { l.save(l.until(time.Now(), nil)) }

func (l *Ledger) save(b Bill) {
	text, err := json.MarshalIndent(b, "", " ")
	if err == nil {
		err = datafolder.WriteFile(l.path, text)
	}
	if err != nil {
		l.log.Warn("what was used is not written down", "error", err)
	}
}

// take reports whether anything was counted since the last call.
func (l *Ledger) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := l.changed
	l.changed = false
	return changed
}

// Read returns the bill that the last Run left in a data folder. Since is zero if nothing
// was ever counted there.
func Read(folder string) (b Bill, err error) {
	path := filepath.Join(folder, File)
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
