package quota

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/meter"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Limiter keeps the limits of callers. It is a [session.Gate]. It is safe for concurrent
// use, and any number of instances may share a store.
type Limiter struct {
	store    session.Store
	sections object   // the limits of the servers file as JSON
	settings Settings // the same
	prices   meter.Prices
	log      *slog.Logger
	skew     time.Duration // of this instance's clock; tests set it

	mu       sync.Mutex
	accounts map[string]*account
	rows     map[session.ValueKey]*rates
	floods   map[string]time.Time // by caller: until when
	troubled time.Time            // when trouble was logged last
}

var _ session.Gate = (*Limiter)(nil)

// Config is what a Limiter works with. All but Log are required.
type Config struct {
	Store    session.Store
	Sections Sections
	Prices   meter.Prices
	Log      *slog.Logger // gets failures of the store, at most one a minute; nil: no log
}

// maxKnown bounds the callers, and the tenants, that an instance remembers.
const maxKnown = 10_000

// New returns a Limiter, or nil if the servers file has no limits: then nothing is limited
// or counted. The error names the wrong key.
func New(c Config) (*Limiter, error) {
	settings, on, err := Read(c.Sections)
	if err != nil || !on {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	sections, err := settings.object()
	if err != nil {
		return nil, err
	}
	return &Limiter{
		store: c.Store, sections: sections, settings: settings, prices: c.Prices, log: c.Log,
		accounts: map[string]*account{}, rows: map[session.ValueKey]*rates{}, floods: map[string]time.Time{},
	}, nil
}

// account returns what this instance knows of a tenant.
func (l *Limiter) account(tenant string) *account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[tenant]
	if a == nil {
		l.makeRoom()
		a = &account{tenant: tenant, turn: newTurn(), limits: l.settings, born: time.Now()}
		l.accounts[tenant] = a
	}
	a.used = time.Now()
	return a
}

func (l *Limiter) row(key session.ValueKey) *rates {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rows[key]
	if r == nil {
		l.makeRoom()
		r = &rates{key: key, clock: func() time.Time { return time.Now().Add(l.skew) }, turn: newTurn(), held: map[string]*held{}}
		l.rows[key] = r
	}
	r.used = time.Now()
	return r
}

// makeRoom forgets callers that were silent for a minute, if many are known. The tokens
// that they held have expired by then. It keeps what a tenant has used if that is not
// written yet.
func (l *Limiter) makeRoom() {
	silent := time.Now().Add(-flushEvery)
	if len(l.rows) >= maxKnown {
		for key, r := range l.rows {
			if r.used.Before(silent) {
				delete(l.rows, key)
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

// Admit implements [session.Gate]. A message with calls takes from the rates of its tools,
// its principal, its server and its tenant, and counts as calls of the day. Other requests
// are refused only when the money or the bytes of the month are used up.
//
// Cost: one read of the account in 30 seconds for each instance and tenant. Rates cost
// one write to each row, for each batch of tokens. The principal and the tenant have a
// row each, and so has the server if it has a limit of its own. A limit of calls in
// flight costs as takeSlot says.
func (l *Limiter) Admit(ctx context.Context, w session.Work) (undo func(), err error) {
	limits, err := l.afford(ctx, w)
	if err != nil {
		return nil, err
	}
	if len(w.Tools) == 0 {
		return func() {}, nil
	}
	taken, err := l.takeRates(ctx, w, limits)
	if err != nil {
		return nil, err
	}
	slots, err := l.takeSlots(ctx, w, limits)
	back := func() {
		ctx, cancel := lasting(ctx)
		defer cancel()
		l.giveBack(ctx, taken)
		for _, key := range slots {
			l.freeSlot(ctx, key, w.Stream)
		}
	}
	if err != nil {
		back()
		return nil, err
	}
	calls := limits.weigh(w)
	l.count(w, calls)
	return func() {
		l.count(w, -calls)
		back()
	}, nil
}

// lasting returns a context for what a request gives back. The request may have ended.
func lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), flushTime)
}

// afford checks the caps of a tenant and of a principal, and returns the tenant's limits.
func (l *Limiter) afford(ctx context.Context, w session.Work) (Settings, error) {
	a := l.account(w.Tenant)
	if err := a.turn.take(ctx); err != nil {
		return Settings{}, err
	}
	defer a.turn.end()
	l.look(ctx, a)
	if a.capped(w.Server) && a.blind() {
		return Settings{}, refuse("spend", "tenant", time.Minute,
			"%s takes no work now: what its tenant has spent could not be read for %s; try again in some minutes, or tell the operator", w.Server, figureLost)
	}
	if s := a.spent(w.Principal, w.Server, a.limits.weigh(w)); s != nil {
		return Settings{}, s.error(w)
	}
	return a.limits, nil
}

// Boxes returns how many boxes a tenant may have, 0 if there is no limit. Cost: one read
// of the account in 30 seconds, as for Admit.
func (l *Limiter) Boxes(ctx context.Context, tenant string) int {
	a := l.account(tenant)
	if a.turn.take(ctx) != nil {
		return l.settings.Boxes
	}
	defer a.turn.end()
	l.look(ctx, a)
	return a.limits.Boxes
}

// weigh returns how many calls the work counts as.
func (s Settings) weigh(w session.Work) (n int64) {
	for _, tool := range w.Tools {
		n += int64(s.Servers[w.Server].weight(tool))
	}
	return n
}

// count adds calls to those of today. They are written to the store when the invocation
// ends.
func (l *Limiter) count(w session.Work, calls int64) {
	a := l.account(w.Tenant)
	a.turn <- struct{}{}
	defer a.turn.end()
	a.pending.add(&a.pending.calls, w.Server, calls)
}

// refuse returns the error for work that a limit refuses.
func refuse(kind, scope string, after time.Duration, format string, args ...any) error {
	return session.Errorf(session.Busy, format, args...).Because(&session.Limited{Kind: kind, Scope: scope, After: after})
}

func (s *spent) error(w session.Work) error {
	until, key := s.until.Format("2006-01-02 15:04")+" UTC", map[string]string{"spend": "month_usd", "bytes": "month_gb", "day": "day"}[s.kind]
	what := map[string]string{
		"spend": fmt.Sprintf("the spend cap of $%.2f a month", s.cap),
		"bytes": fmt.Sprintf("the %g GB of this month", s.cap),
		"day":   fmt.Sprintf("the %.0f calls of today", s.cap),
	}[s.kind]
	whose := "all servers of tenant " + w.Tenant
	switch {
	case s.scope == "principal":
		whose, key = "you", "principal_"+key
	case s.server != "":
		whose = s.server + " of tenant " + w.Tenant
	}
	return refuse(s.kind, s.scope, time.Until(s.until),
		"%s for %s is used up: calls go on at %s, or as soon as the operator raises %s (dormouse quotas set)", what, whose, until, key)
}

// Flooding returns Busy for a caller that goes on at ten times a rate after it was
// refused. It reads memory only, so it costs next to nothing.
func (l *Limiter) Flooding(tenant, principal string) error {
	l.mu.Lock()
	until := l.floods[callerOf(tenant, principal)]
	l.mu.Unlock()
	after := time.Until(until)
	if after <= 0 {
		return nil
	}
	return session.Errorf(session.Busy, "too many requests: wait %d s", seconds(after)).
		Because(&session.Limited{Kind: "rate", Scope: "principal", After: after, Flood: true})
}

// callerOf returns the key of a caller in the maps of floods.
func callerOf(tenant, principal string) string { return tenant + "\x00" + principal }

// seconds rounds a time up to whole seconds.
func seconds(d time.Duration) int { return max(1, int((d+time.Second-1)/time.Second)) }

// flood refuses all requests of a caller until a call may pass again. It does so for at
// least a second and at most ten.
func (l *Limiter) flood(w session.Work, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.makeRoom()
	l.floods[callerOf(w.Tenant, w.Principal)] = time.Now().Add(min(max(after, time.Second), 10*time.Second))
}
