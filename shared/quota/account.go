package quota

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Bounds of what an instance knows and keeps of an account.
const (
	figureAge   = 30 * time.Second // the account is read again when it is this old
	figureLost  = 10 * time.Minute // if the account could not be read for this long, caps refuse work
	flushEvery  = time.Minute
	flushCalls  = 50
	flushNanos  = 10_000_000 // a cent
	near        = 0.9        // above this part of a cap, each invocation writes what it used
	keptTasks   = 32
	accountLife = 400 * 24 * time.Hour
	nanos       = 1e9 // of a dollar
	flushTime   = 2 * time.Second
	maxServers  = 1000 // that an account tells apart
	// maxPrincipals is how many principals with caps an account tells apart in a month.
	maxPrincipals = 1000
)

// Used is what a tenant has used, of all servers ("") and by the name of a server.
type Used struct {
	Month string           `json:"month,omitempty"` // YYYY-MM, UTC
	Nanos map[string]int64 `json:"nanos,omitempty"` // of a dollar, in the month
	Bytes map[string]int64 `json:"bytes,omitempty"` // in the month
	Day   string           `json:"day,omitempty"`   // YYYY-MM-DD, UTC
	Calls map[string]int64 `json:"calls,omitempty"` // on the day
	// Principals is what each principal has used in the month, if principals have caps.
	Principals map[string]Share `json:"principals,omitempty"`
}

// Share is what a principal has used in a month.
type Share struct {
	Nanos int64 `json:"nanos,omitempty"` // of a dollar
	Bytes int64 `json:"bytes,omitempty"`
}

func (s Share) plus(more Share) Share { return Share{s.Nanos + more.Nanos, s.Bytes + more.Bytes} }

// accountRow is the stored form of a tenant's account.
type accountRow struct {
	Limits json.RawMessage `json:"limits,omitempty"` // what an operator has set, as Settings
	Used   Used            `json:"used"`
	Tasks  []string        `json:"tasks,omitempty"` // the latest tasks that were charged
	Writer string          `json:"writer,omitempty"`
}

// account is what this instance knows about the use and the limits of a tenant. Callers
// hold turn.
type account struct {
	tenant string
	turn   turn
	used   time.Time

	rev     int64
	row     accountRow
	read    time.Time // when rev and row were true last; zero: never
	failed  time.Time // when the store failed last, after read
	born    time.Time
	limits  Settings // limits of the servers file; those of the row replace them
	pending pending
	flushed time.Time
}

// pending is what was used and is not in the row yet.
type pending struct {
	nanos, bytes, calls map[string]int64
	principals          map[string]Share
	tasks               []string
}

// addTo adds to what a principal has used.
func (p *pending) addTo(principal string, more Share) {
	if p.principals == nil {
		p.principals = map[string]Share{}
	}
	p.principals[principal] = p.principals[principal].plus(more)
}

func (p *pending) add(to *map[string]int64, server string, n int64) {
	if *to == nil {
		*to = map[string]int64{}
	}
	(*to)[""] += n
	if server != "" {
		(*to)[server] += n
	}
}

func (p *pending) empty() bool {
	return p.nanos[""] == 0 && p.bytes[""] == 0 && p.calls[""] == 0 && len(p.tasks) == 0
}

func accountKey(tenant string) session.ValueKey {
	return session.ValueKey{Tenant: tenant, Scope: session.ValueOfServer, Name: "quota.account"}
}

// month and day name the month and the day of a time.
func month(t time.Time) string { return t.UTC().Format("2006-01") }
func day(t time.Time) string   { return t.UTC().Format(time.DateOnly) }

// nextMonth and nextDay return when the next month and the next day begin.
func nextMonth(t time.Time) time.Time {
	t = t.UTC()
	return time.Date(t.Year(), t.Month()+1, 1, 0, 0, 0, 0, time.UTC)
}

func nextDay(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour) }

// at returns what was used in the month and on the day of a time.
func (u Used) at(t time.Time) Used {
	now := Used{Month: month(t), Day: day(t)}
	// If u has a later month or day than t, another instance has begun it already.
	if u.Month >= now.Month {
		now.Month, now.Nanos, now.Bytes, now.Principals = u.Month, u.Nanos, u.Bytes, u.Principals
	}
	if u.Day >= now.Day {
		now.Day, now.Calls = u.Day, u.Calls
	}
	return now
}

// plus returns the sum of both. It leaves the principals out.
func (u Used) plus(p pending) Used {
	u.Nanos, u.Bytes, u.Calls = sum(u.Nanos, p.nanos), sum(u.Bytes, p.bytes), sum(u.Calls, p.calls)
	return u
}

// sum adds two maps. Servers beyond maxServers count for all servers together only.
func sum(a, b map[string]int64) map[string]int64 {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]int64{}
	}
	for name, n := range b {
		if _, known := all[name]; known || name == "" || len(all) <= maxServers {
			all[name] += n
		}
	}
	return all
}

// shares adds what principals have used. Those beyond maxPrincipals count for their tenant
// only.
func shares(a, b map[string]Share) map[string]Share {
	if len(b) == 0 {
		return a
	}
	all := maps.Clone(a)
	if all == nil {
		all = map[string]Share{}
	}
	for name, more := range b {
		if _, known := all[name]; known || len(all) < maxPrincipals {
			all[name] = all[name].plus(more)
		}
	}
	return all
}

// shareOf returns what a principal has used in the month of a time.
func (a *account) shareOf(principal string, now time.Time) Share {
	return a.row.Used.at(now).Principals[principal].plus(a.pending.principals[principal])
}

// look reads the account if this instance's copy is too old. While the store is down,
// look keeps the old copy.
func (l *Limiter) look(ctx context.Context, a *account) {
	if now := time.Now(); now.Sub(a.read) < figureAge || now.Sub(a.failed) < time.Second {
		return
	}
	if err := l.load(ctx, a); err != nil {
		a.failed = time.Now()
		l.trouble("the account of a tenant cannot be read", err)
	}
}

func (l *Limiter) load(ctx context.Context, a *account) error {
	v, row, err := loadRow[accountRow](ctx, l.store, accountKey(a.tenant))
	if err == nil {
		l.take(a, v.Rev, row)
	}
	return err
}

func (l *Limiter) take(a *account, rev int64, row accountRow) {
	a.rev, a.row, a.read = rev, row, time.Now()
	a.limits = l.settings
	if len(row.Limits) == 0 {
		return
	}
	if own, err := readObject(row.Limits); err == nil {
		if limits, err := l.sections.over(own).settings(); err == nil {
			a.limits = limits
		}
	}
}

// flush adds what is pending to the row. After an error it stays pending.
func (l *Limiter) flush(ctx context.Context, a *account) error {
	for tries := range maxTries {
		row, now := a.row, time.Now()
		row.Used = row.Used.at(now).plus(a.pending)
		row.Used.Principals = shares(row.Used.Principals, a.pending.principals)
		row.Tasks = append(slices.Clone(row.Tasks), a.pending.tasks...)
		row.Tasks = row.Tasks[max(0, len(row.Tasks)-keptTasks):]
		row.Writer = session.NewNonce()
		err := l.saveAccount(ctx, a, row)
		switch {
		case err == nil:
			a.pending, a.flushed = pending{}, now
			return nil
		case errors.Is(err, session.Conflict):
			if err := pause(ctx, tries); err != nil {
				return err
			}
			if err := l.load(ctx, a); err != nil {
				return err
			}
		default:
			// The write may have succeeded in spite of the error. It has if its nonce is
			// in the row.
			if l.load(ctx, a) == nil && a.row.Writer == row.Writer {
				a.pending, a.flushed = pending{}, now
				return nil
			}
			return err
		}
	}
	return session.Errorf(session.Unavailable, "too many requests change the account of the tenant at once; try again")
}

func (l *Limiter) saveAccount(ctx context.Context, a *account, row accountRow) error {
	data, err := json.Marshal(row)
	if err != nil {
		return err // all parts were read as JSON
	}
	v, err := l.store.SaveValue(ctx, session.Value{Key: accountKey(a.tenant), Rev: a.rev, Data: data, Expires: time.Now().Add(accountLife)})
	if err == nil {
		l.take(a, v.Rev, row)
	}
	return err
}

// due reports whether pending use has to be written now.
func (a *account) due() bool {
	if a.pending.empty() {
		return false
	}
	p := a.pending
	return p.nanos[""] >= flushNanos || p.calls[""] >= flushCalls || len(p.tasks) > 0 || time.Since(a.flushed) >= flushEvery || a.close()
}

// close reports whether a cap of the tenant is nearly used up.
func (a *account) close() bool {
	used := a.row.Used.at(time.Now()).plus(a.pending)
	over := func(n int64, most float64) bool { return most > 0 && float64(n) >= near*most }
	nearly := func(l Limits, server string) bool {
		return over(used.Nanos[server], l.MonthUSD*nanos) || over(used.Bytes[server], l.MonthGB*gigabyte) || over(used.Calls[server], float64(l.Day))
	}
	if nearly(a.limits.Limits, "") {
		return true
	}
	for principal := range a.pending.principals {
		share := a.shareOf(principal, time.Now())
		if over(share.Nanos, a.limits.PrincipalUSD*nanos) || over(share.Bytes, a.limits.PrincipalGB*gigabyte) {
			return true
		}
	}
	for server, of := range a.limits.Servers {
		if nearly(of, server) {
			return true
		}
	}
	return false
}

const gigabyte = 1 << 30

// spent is a cap that is used up.
type spent struct {
	kind   string // see session.Limited
	scope  string // the same: principal or tenant
	cap    float64
	server string // "" for all servers
	until  time.Time
}

// spent returns the cap that refuses work of a principal on a server, the narrowest first.
func (a *account) spent(principal, server string, calls int64) *spent {
	now := time.Now()
	if l := a.limits.Limits; l.capsPrincipals() {
		switch share := a.shareOf(principal, now); {
		case l.PrincipalUSD > 0 && float64(share.Nanos) >= l.PrincipalUSD*nanos:
			return &spent{"spend", "principal", l.PrincipalUSD, "", nextMonth(now)}
		case l.PrincipalGB > 0 && float64(share.Bytes) >= l.PrincipalGB*gigabyte:
			return &spent{"bytes", "principal", l.PrincipalGB, "", nextMonth(now)}
		}
	}
	used := a.row.Used.at(now).plus(a.pending)
	for _, of := range []string{server, ""} {
		limits := a.limits.Limits
		if of != "" {
			limits = a.limits.Servers[of]
		}
		switch {
		case limits.MonthUSD > 0 && float64(used.Nanos[of]) >= limits.MonthUSD*nanos:
			return &spent{"spend", "tenant", limits.MonthUSD, of, nextMonth(now)}
		case limits.MonthGB > 0 && float64(used.Bytes[of]) >= limits.MonthGB*gigabyte:
			return &spent{"bytes", "tenant", limits.MonthGB, of, nextMonth(now)}
		case limits.Day > 0 && calls > 0 && used.Calls[of]+calls > int64(limits.Day):
			return &spent{"day", "tenant", float64(limits.Day), of, nextDay(now)}
		}
	}
	return nil
}

// capped reports whether one of the limits in US dollars applies to the calls of a
// server.
func (a *account) capped(server string) bool {
	return a.limits.MonthUSD > 0 || a.limits.PrincipalUSD > 0 || a.limits.Servers[server].MonthUSD > 0
}

// blind reports whether the account could not be read for so long that this instance
// cannot keep caps.
func (a *account) blind() bool {
	return time.Since(later(a.read, a.born)) >= figureLost
}
