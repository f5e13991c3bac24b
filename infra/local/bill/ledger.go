// Package bill counts what AWS would have billed for what this machine does: from what
// functions say in their log lines, and from the time of connections and boxes.
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

// File is the file in the data folder that holds what was counted up to the end
// of the last Run, and, while one is up, up to a minute ago.
const File = "usage.json"

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

// Ledger adds up what lines and boxes say. It is safe for concurrent use.
type Ledger struct {
	path    string // of its file
	size    func(server string) meter.BoxSize
	running func(context.Context) ([]fleet.Status, error) // the boxes
	log     *slog.Logger

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

// Open takes up what earlier runs have counted in a data folder. size is what the box of a
// server would have on AWS, running lists boxes; those that do not run are passed over.
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

// give adds to what an owner has used.
func (l *Ledger) give(o Owner, u meter.Units) {
	if _, known := l.shares[o]; !known && o.Session != "" && len(l.shares) >= maxOwners {
		o.Session = ""
	}
	l.shares[o] = l.shares[o].Plus(u)
	l.changed = true
}

// Line takes a log line of a function. Those of boxes are not to be believed.
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
	if said.Tenant == "" { // nobody was let in, whatever was asked for
		o = Owner{}
	}
	l.give(o, said.Units)
	if c, known := l.conns[said.Conn]; said.Conn != "" && known && said.Tenant != "" {
		l.conns[said.Conn] = open{o, c.since}
	}
}

// Watch returns a handler that passes every line on to h, and has the ledger take those
// that say what was used.
func (l *Ledger) Watch(h slog.Handler) slog.Handler { return watch{h, l} }

type watch struct {
	slog.Handler
	ledger *Ledger
}

// Handle passes every line on.
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

// Opened begins to look for whom a connection is.
func (l *Ledger) Opened(conn string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[conn] = open{since: time.Now()}
}

// Closed bills a connection.
func (l *Ledger) Closed(conn string, lived time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.conns[conn].Owner
	delete(l.conns, conn)
	l.give(o, meter.Units{ConnectionMinutes: lived.Minutes()})
}

// Stopped bills a box.
func (l *Ledger) Stopped(t fleet.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.give(ownerOf(t), l.task(t, t.Stopped))
}

// ownerOf is the tenant of a box and its server: a box is named by the two.
func ownerOf(t fleet.Status) Owner {
	return Owner{Server: t.Server, Tenant: strings.TrimSuffix(t.Box, "/"+t.Server)}
}

func (l *Ledger) task(t fleet.Status, until time.Time) meter.Units {
	return meter.Task(until.Sub(t.Started).Seconds(), l.size(t.Server))
}

// Bill is what was used up to now, by boxes that run, too.
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

// Keep writes the ledger down from time to time until ctx ends.
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

// Close writes the ledger down for the last time, when no box runs any more.
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

// take says whether anything was counted since it was asked last.
func (l *Ledger) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := l.changed
	l.changed = false
	return changed
}

// Read reads what the last Run has left in a data folder. Since is zero if nothing was ever
// counted there.
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
