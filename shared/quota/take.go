package quota

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// taking is the part of a message's needs that one row meets.
type taking struct {
	row   *rates
	needs []need
}

// Names of the rows. Rows of a principal or a tenant name no server, and the row of a
// server names no tenant. So no native server can reach them.
func principalRow(w session.Work, name string) session.ValueKey {
	return session.ValueKey{Tenant: w.Tenant, Scope: session.ValueOfPrincipal, Of: w.Principal, Name: name}
}

func tenantRow(w session.Work) session.ValueKey {
	return session.ValueKey{Tenant: w.Tenant, Scope: session.ValueOfServer, Name: rateRow}
}

func serverRow(w session.Work) session.ValueKey {
	return session.ValueKey{Server: w.Server, Scope: session.ValueOfServer, Name: rateRow}
}

const (
	rateRow = "quota.rate"
	slotRow = "quota.slots"
)

type keyed struct {
	key   session.ValueKey
	needs []need
}

// takings returns what the calls of a message need, the narrowest limits first.
func (s Settings) takings(w session.Work) (rows []keyed) {
	of := s.Servers[w.Server]
	add := func(key session.ValueKey, needs ...need) {
		some := needs[:0]
		for _, n := range needs {
			if !n.rate.IsZero() {
				n.n = n.rate.cost(n.n)
				some = append(some, n)
			}
		}
		if len(some) > 0 {
			rows = append(rows, keyed{key, some})
		}
	}
	all := int(s.weigh(w))
	var own []need
	byName := map[string]int{}
	for _, tool := range w.Tools {
		if name, ok := nearest(of.Tools, tool); ok {
			if byName[name] == 0 {
				own = append(own, need{bucket: w.Server + "/" + name, scope: "tool", tool: name, rate: of.Tools[name]})
			}
			byName[name] += of.weight(tool)
		}
	}
	for i := range own {
		own[i].n = byName[own[i].tool]
	}
	own = append(own, need{bucket: w.Server, scope: "principal", rate: of.Principal, n: all}, need{scope: "principal", rate: s.Principal, n: all})
	add(principalRow(w, rateRow), own...)
	add(tenantRow(w), need{bucket: w.Server, scope: "tenant", rate: of.Tenant, n: all}, need{scope: "tenant", rate: s.Tenant, n: all})
	add(serverRow(w), need{scope: "server", rate: of.Server, n: all})
	return rows
}

// takeRates takes tokens of all rates of a message, or of none.
func (l *Limiter) takeRates(ctx context.Context, w session.Work, limits Settings) (taken []taking, err error) {
	for _, r := range limits.takings(w) {
		taken = append(taken, taking{l.row(r.key), r.needs})
	}
	locked := taken[:0:0]
	defer func() {
		for _, t := range locked {
			t.row.turn.end()
		}
	}()
	for _, t := range taken { // always in this order
		if err := t.row.turn.take(ctx); err != nil {
			return nil, err
		}
		locked = append(locked, t)
	}
	for _, t := range taken {
		if refused := t.row.peek(t.needs); refused != nil {
			return nil, l.refused(w, t.row, refused)
		}
	}
	for i, t := range taken {
		refused, err := t.row.fill(ctx, l.store, t.needs)
		if err != nil {
			l.trouble("limits are not shared while the store does not answer", err)
			refused = t.row.alone(t.needs)
		}
		if refused != nil {
			ctx, cancel := lasting(ctx)
			defer cancel()
			for _, before := range taken[:i] {
				before.row.giveBack(ctx, l.store, before.needs)
			}
			return nil, l.refused(w, t.row, refused)
		}
		t.row.spend(t.needs)
	}
	return taken, nil
}

// giveBack gives back the tokens that were taken for a message.
func (l *Limiter) giveBack(ctx context.Context, taken []taking) {
	for _, t := range taken {
		if t.row.turn.take(ctx) != nil {
			return // a few calls fewer for some seconds
		}
		t.row.giveBack(ctx, l.store, t.needs)
		t.row.turn.end()
	}
}

// refused returns the error for a rate of a row that is used up. Call it with the turn of
// the row.
func (l *Limiter) refused(w session.Work, row *rates, r *refusal) error {
	if row.floods(callerOf(w.Tenant, w.Principal), r.need) {
		l.flood(w, r.after)
	}
	what, whose := " of "+w.Server, "for you"
	if r.bucket == "" && r.scope != "server" {
		what = ""
	}
	switch r.scope {
	case "tool":
		what = " of tool " + r.tool + " of " + w.Server
	case "tenant":
		whose = "for tenant " + w.Tenant
	case "server":
		whose = "for all its users together"
	}
	return refuse("rate", r.scope, r.after, "too many calls%s: try again in %d s (limit %s %s)", what, seconds(r.after), r.rate.words(), whose)
}

// takeSlots takes a slot for a message among its principal's calls in flight on the
// server, and one among those on all servers. It returns the keys of the rows, also those
// that it has taken before an error.
func (l *Limiter) takeSlots(ctx context.Context, w session.Work, limits Settings) (taken []session.ValueKey, err error) {
	s := slot{Session: w.Session, Stream: w.Stream, Box: session.BoxFor(w.Tenant, w.Server), Begun: time.Now().UnixMilli()}
	for _, of := range []struct {
		name string
		most int
	}{{slotRow + "/" + w.Server, limits.Servers[w.Server].Concurrent}, {slotRow, limits.Concurrent}} {
		if of.most == 0 {
			continue
		}
		key := principalRow(w, of.name)
		ok, err := l.takeSlot(ctx, key, s, of.most)
		if err != nil && ctx.Err() == nil {
			l.trouble("calls in flight are not counted while the store does not answer", err)
			continue
		}
		if ok {
			taken = append(taken, key)
			continue
		}
		if err != nil {
			return taken, err
		}
		return taken, refuse("concurrent", "principal", slotWait,
			"%d calls are in flight, as many as you may have: wait for one of them to end, or cancel it", of.most)
	}
	return taken, nil
}
