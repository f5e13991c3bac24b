package quota

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

const (
	figureAge   = 30 * time.Second // at this age the account is read again
	figureLost  = 10 * time.Minute // a tenant with a cap is refused if its account could not be read for this long
	flushEvery  = time.Minute
	flushNanos  = 10_000_000 // at this many nanodollars, a cent, an instance writes what it used
	near        = 0.9        // above this fraction of a cap, each invocation writes what it used
	keptTasks   = 32
	accountLife = 400 * 24 * time.Hour
	nanos       = 1e9 // nanodollars in a dollar
	flushTime   = 2 * time.Second
)

// accountRow is the stored form of a tenant's account.
type accountRow struct {
	Limits json.RawMessage `json:"limits,omitempty"` // limits that an operator has set, in the form of Limits
	Used   used            `json:"used"`
	Tasks  []string        `json:"tasks,omitempty"` // the latest tasks that were charged
	Writer string          `json:"writer,omitempty"`
}

// used is what a tenant has used in a month. The key "" has the sum of all servers; earlier
// releases also counted each server, under its name.
type used struct {
	Month string           `json:"month,omitempty"` // YYYY-MM, UTC
	Nanos map[string]int64 `json:"nanos,omitempty"` // nanodollars
}

// in returns the month of t and its use, or the stored month and its use if that month is later.
func (u used) in(t time.Time) (month string, nanos int64) {
	if month = t.UTC().Format("2006-01"); u.Month < month {
		return month, 0
	}
	return u.Month, u.Nanos[""]
}

func nextMonth(t time.Time) time.Time {
	t = t.UTC()
	return time.Date(t.Year(), t.Month()+1, 1, 0, 0, 0, 0, time.UTC)
}

func accountKey(tenant string) storage.ValueKey {
	return storage.ValueKey{Tenant: tenant, Scope: storage.ValueOfServer, Name: "quota.account"}
}

// account is what this instance knows about the use and the limits of a tenant. The field turn is
// its lock.
type account struct {
	tenant string
	turn   turn

	rev     int64
	row     accountRow
	read    time.Time // when rev and row were last read or written; zero: never
	failed  time.Time // when the store last failed; zero: never
	born    time.Time // when this instance first heard of the tenant
	limits  Limits    // limits of the servers file, or of the row if it has some
	nanos   int64     // nanodollars that were used and are not in the row yet
	tasks   []string  // tasks that were charged and are not in the row yet
	flushed time.Time
}

// spent returns what the tenant has spent in the month of a time, in nanodollars.
func (a *account) spent(now time.Time) float64 {
	_, nanos := a.row.Used.in(now)
	return float64(nanos + a.nanos)
}

// pending reports whether something was used that is not in the row.
func (a *account) pending() bool { return a.nanos != 0 || len(a.tasks) > 0 }

// due reports whether what is pending has to be written now.
func (a *account) due() bool {
	most := a.limits.MonthUSD * nanos
	return a.pending() && (a.nanos >= flushNanos || len(a.tasks) > 0 || time.Since(a.flushed) >= flushEvery ||
		most > 0 && a.spent(time.Now()) >= near*most)
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
	a.rev, a.row, a.read, a.limits = rev, row, time.Now(), l.file
	if len(row.Limits) > 0 {
		if own, err := l.file.under(row.Limits); err == nil {
			a.limits = own
		}
	}
}

// flush adds what is pending to the row. After an error, all stays pending.
func (l *Limiter) flush(ctx context.Context, a *account) error {
	for tries := range maxTries {
		row, now := a.row, time.Now()
		month, before := row.Used.in(now)
		row.Used = used{month, map[string]int64{"": before + a.nanos}}
		row.Tasks = append(slices.Clone(row.Tasks), a.tasks...)
		row.Tasks = row.Tasks[max(0, len(row.Tasks)-keptTasks):]
		row.Writer = storage.NewNonce()
		err := l.saveAccount(ctx, a, row)
		// The write may have succeeded in spite of an error. It has succeeded if the row has
		// its nonce (Writer).
		if err == nil || !errors.Is(err, storage.Conflict) && l.load(ctx, a) == nil && a.row.Writer == row.Writer {
			a.nanos, a.tasks, a.flushed = 0, nil, now
			return nil
		}
		if !errors.Is(err, storage.Conflict) {
			return err
		}
		if err := pause(ctx, tries); err != nil {
			return err
		}
		if err := l.load(ctx, a); err != nil {
			return err
		}
	}
	return crowded(a.tenant)
}

// crowded is the error of an account that others write all the time.
func crowded(tenant string) error {
	return storage.Errorf(storage.Unavailable, "too many requests change the account of tenant %s at once; try again", tenant)
}

func (l *Limiter) saveAccount(ctx context.Context, a *account, row accountRow) error {
	data, err := json.Marshal(row)
	if err != nil {
		return err // cannot fail: all parts were read as JSON
	}
	v, err := l.store.SaveValue(ctx, storage.Value{Key: accountKey(a.tenant), Rev: a.rev, Data: data, Expires: time.Now().Add(accountLife)})
	if err == nil {
		l.take(a, v.Rev, row)
	}
	return err
}

// Meter returns a meter that also charges tenants for what inner counts. The method Spent of the
// meter writes the account when a write is due, with a time limit of two seconds.
func (l *Limiter) Meter(inner storage.Meter) storage.Meter { return charging{inner, l} }

type charging struct {
	storage.Meter
	limiter *Limiter
}

func (c charging) Spent(a storage.Account) storage.Spent {
	spent := c.Meter.Spent(a)
	if a.Tenant != "" {
		c.limiter.Charge(a.Tenant, spent.Units)
	}
	return spent
}

// Charge adds use to the account of a tenant. An error of the store leaves the use for the
// next charge.
func (l *Limiter) Charge(tenant string, u meter.Units) {
	l.charge(tenant, func(a *account) { a.nanos += l.nanos(u) })
}

// ChargeTask adds the time of a Fargate task that ran a box. A task may be reported more than once;
// ChargeTask counts a task with the same name once.
func (l *Limiter) ChargeTask(tenant, task string, u meter.Units) {
	l.charge(tenant, func(a *account) {
		if !slices.Contains(a.row.Tasks, task) && !slices.Contains(a.tasks, task) {
			a.tasks = append(a.tasks, task)
			a.nanos += l.nanos(u)
		}
	})
}

func (l *Limiter) nanos(u meter.Units) int64 { return int64(math.Round(l.prices.Cost(u) * nanos)) }

func (l *Limiter) charge(tenant string, add func(*account)) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	a := l.account(tenant)
	if a.turn.take(ctx) != nil {
		a.turn <- struct{}{} // wait without a limit: the flush that has the turn ends within flushTime
	}
	defer a.turn.end()
	if a.read.IsZero() {
		l.look(ctx, a)
	}
	add(a)
	if !a.due() || time.Since(a.failed) < time.Second {
		return
	}
	if err := l.flush(ctx, a); err != nil {
		a.failed = time.Now()
		l.trouble("what a tenant has used is not written down; the next request tries again", err)
	}
}

// Flush writes what is pending to the store, before an instance ends.
//
// Errors: Unavailable; what is not written stays pending.
func (l *Limiter) Flush(ctx context.Context) error {
	l.mu.Lock()
	var all []*account
	for _, a := range l.accounts {
		all = append(all, a)
	}
	l.mu.Unlock()
	var failed error
	for _, a := range all {
		if err := a.turn.take(ctx); err != nil {
			return err
		}
		if a.pending() {
			failed = errors.Join(failed, l.flush(ctx, a))
		}
		a.turn.end()
	}
	return failed
}
