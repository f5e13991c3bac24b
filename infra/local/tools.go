package local

import (
	"context"
	"fmt"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/api"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// countWithin is the longest time to find out how many tools servers have. A slow store
// must not delay the first lines on the terminal, nor the line about a ready server.
const countWithin = 2 * time.Second

// mostSeen is how many sessions are read to find the tenants of this machine.
const mostSeen = 100

// recorded finds the tools of servers, by the answers that they last gave to some
// tenants.
type recorded struct {
	ctx     context.Context
	known   api.Options
	tenants []string
}

// recordsOf returns what is recorded for some tenants.
func recordsOf(ctx context.Context, m *machine, tenants ...string) recorded {
	r := recorded{ctx: ctx, known: m.functions.operators(), tenants: tenants}
	r.known.Store = m.functions.records()
	return r
}

// recordsOfAll returns what is recorded for all tenants of a machine. It reads sessions
// to find the tenants.
func recordsOfAll(ctx context.Context, m *machine) recorded {
	r := recordsOf(ctx, m)
	var err error
	if r.tenants, err = api.Tenants(ctx, r.known.Store, mostSeen); err != nil {
		m.log.Warn("the tools of servers are not counted for the terminal", "error", err)
	}
	return r
}

// tools returns how many tools a server has. started is whether the server ever answered
// initialize with this definition. Neither is known of a server without a record.
func (r recorded) tools(s catalog.Server) (n int, started bool) {
	for _, tenant := range r.tenants {
		tools, _, err := r.known.Known(r.ctx, tenant, s)
		if err != nil {
			return n, true
		}
		n = max(n, len(tools))
		if n == 0 && !started {
			parts, err := r.known.Store.ListHandshakes(r.ctx, session.RecordFor(tenant, s.RecordDigest()), "")
			started = err != nil || len(parts) > 0
		}
	}
	return n, started || n > 0 || s.InPlace()
}

// text returns what the list of servers shows about a server at the start: "11 tools",
// "never started", or "".
func (r recorded) text(s catalog.Server) string {
	if !s.InPlace() && !s.Record {
		return ""
	}
	switch n, started := r.tools(s); {
	case n > 0:
		return countOf(n)
	case started:
		return ""
	default:
		return "never started"
	}
}

// toolsOf returns how many tools a tenant's server is known to have, as "11 tools"; "" if
// that is not known.
func toolsOf(m *machine, tenant, server string) string {
	ctx, cancel := context.WithTimeout(context.Background(), countWithin)
	defer cancel()
	s, ok := m.servers.Load().Server(server)
	if !ok || !s.InPlace() && !s.Record {
		return ""
	}
	n, _ := recordsOf(ctx, m, tenant).tools(s)
	return countOf(n)
}

func countOf(tools int) string {
	switch tools {
	case 0:
		return ""
	case 1:
		return "1 tool"
	default:
		return fmt.Sprintf("%d tools", tools)
	}
}
