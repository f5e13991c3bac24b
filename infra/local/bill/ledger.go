// Package bill counts what AWS would have billed for the work of this machine.
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
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/durable"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// File is the name of the ledger's file in the data folder. While dormouse run uses the folder,
// the file is up to a minute old.
const File = "usage.json"

// saveEvery is how often the ledger is saved while counts change.
const saveEvery = time.Minute

// maxOwners limits the entries of each map of a Ledger but conns. The use of further owners counts
// only for their server and tenant.
const maxOwners = 10_000

// owner is who pays for a use: a session, with its server, tenant and principal. The owner of a box's
// time is only a server and a tenant. The zero owner pays for refused callers, and for the cleanup at
// intervals (sweep).
type owner struct {
	server, tenant, session string
	principal               string // "" if no event has named it yet
	tool                    string // the tool that was called; only in Ledger.days, and not for the time of boxes and connections
}

func ownerOf(s api.Share) owner {
	return owner{s.Server, s.Tenant, s.Session, s.Principal, s.Tool}
}

func (o owner) share(day string, u meter.Units) api.Share {
	return api.Share{Server: o.server, Tenant: o.tenant, Session: o.session, Principal: o.principal, Tool: o.tool, Day: day, Units: u}
}

// Bill is what AWS would have billed for all work in a data folder.
//
// The events of package observe say what was used, and for whom. The bill leaves out the cold
// starts of Lambda functions.
type Bill struct {
	Since  time.Time   `json:"since"`
	Until  time.Time   `json:"until"`
	Shares []api.Share `json:"shares"` // by session, not by tool; the largest use first
	// Days has the same use by day and tool, not by session, for the last keptDays days; the
	// oldest first. The time of a box or a connection counts for the day on which it ended.
	Days []api.Share `json:"days,omitempty"`
}

// After returns the use since the beginning of t's day (UTC), by day. The result since is that
// beginning, or b.Since if the ledger began to count later.
func (b Bill) After(t time.Time) (since time.Time, shares []api.Share) {
	since = t.UTC().Truncate(24 * time.Hour)
	for _, s := range b.Days {
		if s.Day >= since.Format(time.DateOnly) {
			shares = append(shares, s)
		}
	}
	if since.Before(b.Since) {
		since = b.Since
	}
	return since, shares
}

// keptDays is for how many days Bill.Days is kept.
const keptDays = 90

// Ledger adds up the use of Lambda functions, connections and boxes. It is safe for
// concurrent use.
type Ledger struct {
	path    string // path of the ledger's file
	size    func(server string) meter.BoxSize
	running func(context.Context) ([]fleet.Status, error) // lists boxes, also some that have stopped
	log     *slog.Logger

	mu      sync.Mutex
	since   time.Time
	shares  map[owner]meter.Units
	days    map[onDay]meter.Units
	conns   map[string]open   // open connections, by id
	who     map[string]string // the principal of each session
	tools   map[string]string // the tool that a request calls, by the request's trace id
	changed bool
}

// onDay is the key of Ledger.days: a day such as 2026-11-22 (UTC), and an owner whose session is "".
type onDay struct {
	day string
	owner
}

// today returns the key in Ledger.days for the owner o.
func today(o owner, now time.Time) onDay {
	o.session = ""
	return onDay{now.UTC().Format(time.DateOnly), o}
}

// open says since when a connection is open, and who pays for it.
type open struct {
	owner
	since time.Time
}

// Open opens the ledger of a data folder, with the counts of earlier runs. The function size
// returns the size that a server's box would have on AWS. The function running lists boxes; those
// that do not run are ignored.
func Open(folder string, size func(server string) meter.BoxSize, running func(context.Context) ([]fleet.Status, error), log *slog.Logger) (*Ledger, error) {
	l := &Ledger{
		path: filepath.Join(folder, File), size: size, running: running, log: log,
		shares: map[owner]meter.Units{}, days: map[onDay]meter.Units{}, conns: map[string]open{}, who: map[string]string{}, tools: map[string]string{},
	}
	saved, err := Read(folder)
	if err != nil {
		return nil, fmt.Errorf("%w; delete the file to count from now on", err)
	}
	if l.since = saved.Since; l.since.IsZero() {
		l.since = time.Now()
	}
	for _, s := range saved.Shares {
		l.shares[ownerOf(s)] = s.Units
		l.knows(s.Session, s.Principal)
	}
	for _, s := range saved.Days {
		l.days[onDay{s.Day, ownerOf(s)}] = s.Units
	}
	return l, nil
}

// give adds u to the use of an owner, in total and for today.
func (l *Ledger) give(o owner, u meter.Units) {
	day := today(o, time.Now())
	if _, known := l.days[day]; !known {
		first := time.Now().UTC().AddDate(0, 0, -keptDays).Format(time.DateOnly)
		maps.DeleteFunc(l.days, func(d onDay, _ meter.Units) bool { return d.day <= first })
		if len(l.days) >= maxOwners {
			day.principal, day.tool = "", ""
		}
	}
	l.days[day] = l.days[day].Plus(u)
	o.tool = ""
	if _, known := l.shares[o]; !known && o.session != "" && len(l.shares) >= maxOwners {
		o.session, o.principal = "", ""
	}
	l.shares[o] = l.shares[o].Plus(u)
	l.changed = true
}

// toolOf returns the tool for which an event reports use.
func (l *Ledger) toolOf(e *observe.Event) string {
	if len(e.Traces) == 1 { // an event about a box's messages, which belong to one request
		return l.tools[e.Traces[0]]
	}
	return e.Tool
}

// charge adds the use that an event reports.
func (l *Ledger) charge(e *observe.Event) {
	session := string(e.Session)
	l.knows(session, e.Principal)
	if e.Tenant == "" { // the caller was refused, so the server that it has named is not charged
		l.give(owner{}, e.Spent.Units)
		return
	}
	o := owner{server: e.Server, tenant: e.Tenant, session: session, principal: cmp.Or(e.Principal, l.who[session])}
	if c, known := l.conns[e.Conn]; known {
		l.conns[e.Conn] = open{o, c.since}
	}
	o.tool = l.toolOf(e)
	l.give(o, e.Spent.Units)
}

// knows remembers the principal of a session, because some events name the session only.
func (l *Ledger) knows(session, principal string) {
	if session == "" || principal == "" {
		return
	}
	if len(l.who) >= maxOwners {
		clear(l.who)
	}
	l.who[session] = principal
}

// Observe counts the use in an event, for the owner of that use.
func (l *Ledger) Observe(e *observe.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Spent != nil {
		l.charge(e)
	} else if e.Kind == observe.Work { // names principal and tool; later events about the box's messages name only session and trace
		l.knows(string(e.Session), e.Principal)
		if len(l.tools) >= maxOwners {
			clear(l.tools)
		}
		l.tools[e.Trace] = e.Tool
	}
}

// Opened records the start of a connection. A later event of this connection names its owner.
func (l *Ledger) Opened(conn string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[conn] = open{since: time.Now()}
}

// Closed adds the time of a connection to the use of its owner.
func (l *Ledger) Closed(conn string, lived time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.conns[conn].owner
	delete(l.conns, conn)
	l.give(o, meter.Units{ConnectionMinutes: lived.Minutes()})
}

// Stopped adds the time of a box to the use of its tenant.
func (l *Ledger) Stopped(t fleet.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.give(boxOwner(t), l.task(t, t.Stopped))
}

// boxOwner returns the owner of a box's time. The owner has no session, because the sessions of a
// box share its time.
func boxOwner(t fleet.Status) owner {
	tenant, _ := storage.BoxID(t.Box).Parts()
	return owner{server: t.Server, tenant: tenant}
}

func (l *Ledger) task(t fleet.Status, until time.Time) meter.Units {
	return meter.Task(until.Sub(t.Started).Seconds(), l.size(t.Server))
}

// Bill returns the use up to now, including that of boxes and connections that are still up.
func (l *Ledger) Bill(ctx context.Context) (Bill, error) {
	running, err := l.running(ctx)
	return l.until(time.Now(), running), err
}

func (l *Ledger) until(now time.Time, running []fleet.Status) Bill {
	l.mu.Lock()
	defer l.mu.Unlock()
	all, days := maps.Clone(l.shares), maps.Clone(l.days)
	give := func(o owner, u meter.Units) {
		all[o] = all[o].Plus(u)
		days[today(o, now)] = days[today(o, now)].Plus(u)
	}
	for _, c := range l.conns {
		give(c.owner, meter.Units{ConnectionMinutes: now.Sub(c.since).Minutes()})
	}
	for _, t := range running {
		if t.State != fleet.Stopped && !t.Started.IsZero() {
			give(boxOwner(t), l.task(t, now))
		}
	}
	b := Bill{Since: l.since, Until: now, Shares: []api.Share{}}
	for d, u := range days {
		if u != (meter.Units{}) {
			b.Days = append(b.Days, d.share(d.day, u))
		}
	}
	slices.SortFunc(b.Days, func(x, y api.Share) int {
		return cmp.Or(cmp.Compare(x.Day, y.Day), cmp.Compare(x.Server, y.Server), cmp.Compare(x.Tenant, y.Tenant))
	})
	prices := meter.Published()
	for o, u := range all {
		if u != (meter.Units{}) {
			b.Shares = append(b.Shares, o.share("", u))
		}
	}
	slices.SortFunc(b.Shares, func(x, y api.Share) int {
		return cmp.Or(cmp.Compare(prices.Cost(y.Units), prices.Cost(x.Units)), cmp.Compare(x.Server+x.Tenant+x.Session, y.Server+y.Tenant+y.Session))
	})
	return b
}

// Total returns the use up to now. It leaves out boxes and connections that are still up.
func (l *Ledger) Total() (u meter.Units) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.shares {
		u = u.Plus(s)
	}
	return u
}

// Keep saves the ledger every minute until ctx ends, if the counts have changed.
func (l *Ledger) Keep(ctx context.Context) {
	for storage.Rest(ctx, saveEvery) == nil {
		if !l.take() {
			continue
		}
		b, err := l.Bill(ctx)
		if err == nil {
			err = l.save(b)
		}
		if err != nil {
			l.log.Warn("usage not saved; trying again in a minute", "error", err)
			l.mu.Lock()
			l.changed = true
			l.mu.Unlock()
		}
	}
}

// Close saves the ledger for the last time. Call it when all boxes have stopped.
func (l *Ledger) Close() {
	if err := l.save(l.until(time.Now(), nil)); err != nil {
		l.log.Warn("usage not saved", "error", err)
	}
}

func (l *Ledger) save(b Bill) error {
	text, err := json.MarshalIndent(b, "", " ")
	if err != nil {
		return err
	}
	return durable.WriteFile(l.path, text, 0o600)
}

// take reports whether anything was counted since the last call of take.
func (l *Ledger) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := l.changed
	l.changed = false
	return changed
}

// Read returns the bill that was saved last in a data folder. Its Since is zero if none was saved.
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
		return Bill{}, fmt.Errorf("cannot read the usage from %s: %w", path, err)
	}
	return b, nil
}
