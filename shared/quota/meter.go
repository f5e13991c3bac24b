package quota

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/meter"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Meter returns a meter that also charges tenants for what inner counts. Its Spent writes
// the account when that is due, with a time limit of two seconds.
func (l *Limiter) Meter(inner session.Meter) session.Meter { return charging{inner, l} }

type charging struct {
	session.Meter
	limiter *Limiter
}

// Spent implements session.Meter.
func (c charging) Spent(a session.Account) []any {
	attrs := c.Meter.Spent(a)
	if a.Tenant == "" {
		return attrs
	}
	for i := 1; i < len(attrs); i += 2 {
		if u, ok := attrs[i].(meter.Units); ok {
			c.limiter.Charge(a.Tenant, a.Principal, a.Server, u, a.In+a.Out)
		}
	}
	return attrs
}

// Charge adds use to the account of a tenant, and to the share of a principal if
// principals have caps. principal may be "". bytes are those of requests and answers. An
// error of the store leaves the use for the next charge.
func (l *Limiter) Charge(tenant, principal, server string, u meter.Units, bytes int) {
	l.charge(tenant, func(a *account) {
		cost := int64(math.Round(l.prices.Cost(u) * nanos))
		a.pending.add(&a.pending.nanos, server, cost)
		a.pending.add(&a.pending.bytes, server, int64(bytes))
		if principal != "" && a.limits.capsPrincipals() {
			a.pending.addTo(principal, Share{cost, int64(bytes)})
		}
	})
}

// ChargeTask adds the time of a task of a box. A fleet may report a task more than once;
// ChargeTask counts a task with the same name once.
func (l *Limiter) ChargeTask(tenant, server, task string, u meter.Units) {
	l.charge(tenant, func(a *account) {
		if slices.Contains(a.row.Tasks, task) || slices.Contains(a.pending.tasks, task) {
			return
		}
		a.pending.tasks = append(a.pending.tasks, task)
		a.pending.add(&a.pending.nanos, server, int64(math.Round(l.prices.Cost(u)*nanos)))
	})
}

// Flush writes what is pending to the store, before an instance ends.
//
// Errors: Unavailable; what is not written stays pending.
func (l *Limiter) Flush(ctx context.Context) error {
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.accounts))
	l.mu.Unlock()
	var failed error
	for _, a := range all {
		if err := a.turn.take(ctx); err != nil {
			return err
		}
		if !a.pending.empty() {
			failed = errors.Join(failed, l.flush(ctx, a))
		}
		a.turn.end()
	}
	return failed
}

func (l *Limiter) charge(tenant string, add func(*account)) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	a := l.account(tenant)
	if a.turn.take(ctx) != nil {
		a.turn <- struct{}{} // another flush has a time limit, too
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
