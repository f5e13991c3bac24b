package quota

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// Limiter keeps the limits of callers. It is a [storage.Gate]. It is safe for concurrent
// use, and any number of instances may share a store.
type Limiter struct {
	store  storage.Store
	file   Limits // limits of the servers file
	prices meter.Prices
	log    *slog.Logger
	skew   time.Duration // added to this instance's clock; only tests set it

	mu       sync.Mutex
	accounts map[string]*account
	calls    map[storage.ValueKey]*calls
	floods   map[string]time.Time // callers that go on after refusals, with the time until which all their requests are refused
	troubled time.Time            // when trouble was logged last
}

var _ storage.Gate = (*Limiter)(nil)

// Config is what a Limiter works with. All but Log are required.
type Config struct {
	Store  storage.Store
	Limits []byte // the section of the servers file, as JSON; nil for none
	Prices meter.Prices
	Log    *slog.Logger // gets failures of the store, at most one a minute; nil: no log
}

// maxKnown is how many callers an instance knows before it forgets silent ones.
const maxKnown = 10_000

// New returns a Limiter, or nil if the servers file has no limits: then nothing is limited
// or counted. The error names the wrong key.
func New(c Config) (*Limiter, error) {
	limits, on, err := Read(c.Limits)
	if err != nil || !on {
		return nil, err
	}
	return &Limiter{
		store: c.Store, file: limits, prices: c.Prices, log: cmp.Or(c.Log, slog.New(slog.DiscardHandler)),
		accounts: map[string]*account{}, calls: map[storage.ValueKey]*calls{}, floods: map[string]time.Time{},
	}, nil
}

func (l *Limiter) account(tenant string) *account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[tenant]
	if a == nil {
		l.makeRoom()
		a = &account{tenant: tenant, turn: newTurn(), limits: l.file, born: time.Now()}
		l.accounts[tenant] = a
	}
	return a
}

// Names of the rows of a principal. Their keys name no server, so that no server can reach them.
const (
	callsName = "quota.calls"
	slotsName = "quota.slots"
)

func rowOf(w storage.Work, name string) storage.ValueKey {
	return storage.ValueKey{Tenant: w.Tenant, Scope: storage.ValueOfPrincipal, Of: w.Principal, Name: name}
}

// callsOf returns the token bucket of w.Principal.
func (l *Limiter) callsOf(w storage.Work) *calls {
	key := rowOf(w, callsName)
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.calls[key]
	if c == nil {
		l.makeRoom()
		c = &calls{key: key, clock: func() time.Time { return time.Now().Add(l.skew) }, turn: newTurn(), batch: 1}
		l.calls[key] = c
	}
	c.used = time.Now()
	return c
}

// makeRoom forgets callers that were silent for a minute, if many are known.
func (l *Limiter) makeRoom() {
	silent := time.Now().Add(-flushEvery)
	if len(l.calls) >= maxKnown {
		for key, c := range l.calls {
			if c.used.Before(silent) {
				delete(l.calls, key)
			}
		}
	}
	if len(l.floods) >= maxKnown {
		clear(l.floods)
	}
}

// trouble logs an error of the store, at most once a minute.
func (l *Limiter) trouble(what string, err error) {
	l.mu.Lock()
	quiet := time.Since(l.troubled) < time.Minute
	if !quiet {
		l.troubled = time.Now()
	}
	l.mu.Unlock()
	if !quiet {
		l.log.Warn("limits are enforced only roughly while the store fails", "what", what, "error", err)
	}
}

// Admit implements [storage.Gate]. For a message with calls it takes one token for each call
// from the rate of the principal, and one of the principal's slots. Only the cap of money
// applies to other requests.
//
// Cost: one read of the account in 30 seconds for each instance and tenant. A rate costs
// one write for each batch of tokens. A limit of calls in flight costs a write for each call,
// and reads if other writers are busy or all slots are taken.
func (l *Limiter) Admit(ctx context.Context, w storage.Work) (undo func(), err error) {
	limits, err := l.afford(ctx, w)
	if err != nil {
		return nil, err
	}
	if len(w.Tools) == 0 {
		return func() {}, nil
	}
	tokens, err := l.takeRate(ctx, w, limits.Principal)
	if err != nil {
		return nil, err
	}
	slot := false
	undo = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime) // the request may have ended
		defer cancel()
		if tokens > 0 {
			l.giveBack(ctx, w, limits.Principal, tokens)
		}
		if slot {
			l.freeSlot(ctx, rowOf(w, slotsName), w.Stream)
		}
	}
	if slot, err = l.takeCall(ctx, w, limits.Concurrent); err != nil {
		undo()
		return nil, err
	}
	return undo, nil
}

// takeRate takes tokens for the calls of a message, and returns how many.
func (l *Limiter) takeRate(ctx context.Context, w storage.Work, r Rate) (tokens int, err error) {
	if r.IsZero() {
		return 0, nil
	}
	c, n := l.callsOf(w), r.cost(len(w.Tools))
	if err := c.turn.take(ctx); err != nil {
		return 0, err
	}
	defer c.turn.end()
	after, err := c.take(ctx, l.store, r, n)
	if err != nil {
		l.trouble("limits are not shared while the store does not answer", err)
		after = c.alone(r, n)
	}
	if after == 0 {
		return n, nil
	}
	if c.floods(r) {
		l.flood(w, after)
	}
	return 0, refuse("rate", "principal", after, "too many calls: try again in %d s (limit %s for you)", seconds(after), r.words())
}

// giveBack gives back the tokens that were taken for a message.
func (l *Limiter) giveBack(ctx context.Context, w storage.Work, r Rate, tokens int) {
	c := l.callsOf(w)
	if c.turn.take(ctx) != nil {
		return // the tokens are lost, so the principal has a few calls fewer
	}
	defer c.turn.end()
	c.giveBack(ctx, l.store, r, tokens)
}

// takeCall takes one of the principal's slots for a message, and reports whether it did. It takes
// none if most is 0, which means no limit, or if the store fails.
func (l *Limiter) takeCall(ctx context.Context, w storage.Work, most int) (taken bool, err error) {
	if most == 0 {
		return false, nil
	}
	s := slot{Session: w.Session, Stream: w.Stream, Box: storage.BoxFor(w.Tenant, w.Server).Numbered(w.Session.Box()), Begun: time.Now().UnixMilli()}
	taken, err = l.takeSlot(ctx, rowOf(w, slotsName), s, most)
	switch {
	case taken:
		return true, nil
	case err != nil && ctx.Err() == nil:
		l.trouble("calls in flight are not counted while the store does not answer", err)
		return false, nil
	case err != nil:
		return false, err
	}
	return false, refuse("concurrent", "principal", slotWait,
		"as many calls are in flight as you may have (%d): wait for one of them to end, or cancel it", most)
}

// afford checks whether a tenant has money left this month, and returns the tenant's limits.
func (l *Limiter) afford(ctx context.Context, w storage.Work) (Limits, error) {
	a := l.account(w.Tenant)
	if err := a.turn.take(ctx); err != nil {
		return Limits{}, err
	}
	defer a.turn.end()
	l.look(ctx, a)
	if a.limits.MonthUSD == 0 {
		return a.limits, nil
	}
	if time.Since(later(a.read, a.born)) >= figureLost {
		return Limits{}, refuse("spend", "tenant", time.Minute,
			"%s takes no work now: what its tenant has spent could not be read for %s; try again in some minutes, or tell the operator", w.Server, figureLost)
	}
	if now := time.Now(); a.spent(now) >= a.limits.MonthUSD*nanos {
		until := nextMonth(now)
		return Limits{}, refuse("spend", "tenant", until.Sub(now),
			"the spend cap of $%.2f a month for all servers of tenant %s is used up: calls go on at %s UTC, or as soon as the operator raises month_usd (dormouse quotas set)",
			a.limits.MonthUSD, w.Tenant, until.Format("2006-01-02 15:04"))
	}
	return a.limits, nil
}

// Boxes returns how many boxes a tenant may have, 0 if there is no limit. Cost: one read
// of the account in 30 seconds, as for Admit.
func (l *Limiter) Boxes(ctx context.Context, tenant string) int {
	a := l.account(tenant)
	if a.turn.take(ctx) != nil {
		return l.file.Boxes
	}
	defer a.turn.end()
	l.look(ctx, a)
	return a.limits.Boxes
}

func refuse(kind, scope string, after time.Duration, format string, args ...any) error {
	return storage.Errorf(storage.Busy, format, args...).Because(&storage.Limited{Kind: kind, Scope: scope, After: after})
}

// Flooding returns Busy for a caller that was refused, and goes on to send ten times as many
// requests as its rate allows. It reads memory only.
func (l *Limiter) Flooding(tenant, principal string) error {
	l.mu.Lock()
	until := l.floods[callerOf(tenant, principal)]
	l.mu.Unlock()
	after := time.Until(until)
	if after <= 0 {
		return nil
	}
	return storage.Errorf(storage.Busy, "too many requests: wait %d s", seconds(after)).
		Because(&storage.Limited{Kind: "rate", Scope: "principal", After: after, Flood: true})
}

// callerOf returns the key of a caller in the map of floods.
func callerOf(tenant, principal string) string { return tenant + "\x00" + principal }

// seconds rounds a time up to whole seconds, at least one.
func seconds(d time.Duration) int { return max(1, int((d+time.Second-1)/time.Second)) }

// flood refuses all requests of a caller until a call may pass again, but for at least a second and
// at most ten.
func (l *Limiter) flood(w storage.Work, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.makeRoom()
	l.floods[callerOf(w.Tenant, w.Principal)] = time.Now().Add(min(max(after, time.Second), 10*time.Second))
}
