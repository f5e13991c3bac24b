package local

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/display"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// countWithin is the longest time that counting the tools of servers may take. A slow store must
// not delay the first lines on the terminal, nor the line about a server that is ready.
const countWithin = 2 * time.Second

// mostSeen is how many sessions are read to find the tenants that this machine has.
const mostSeen = 1000

// recorded finds the tools of servers for some tenants. For a server in a box they are in its
// handshake record, which has what the server last answered to tools/list.
type recorded struct {
	ctx     context.Context
	known   api.Options
	tenants []string
}

func recordsOf(ctx context.Context, m *machine, tenants ...string) recorded {
	r := recorded{ctx: ctx, known: m.functions.Operators(), tenants: tenants}
	r.known.Store = m.functions.Records()
	return r
}

// recordsOfAll returns a [recorded] for all tenants of a machine.
func recordsOfAll(ctx context.Context, m *machine) recorded {
	r := recordsOf(ctx, m)
	var err error
	if r.tenants, err = api.Tenants(ctx, r.known.Store, mostSeen); err != nil {
		m.log.Warn("the tools of servers are not counted for the terminal", "error", err)
	}
	return r
}

// tools returns how many tools a server has, as far as stored lists say. The result started is true
// if the server has ever answered initialize with this definition. It is also true for a server that
// runs in no box, and if the store fails.
func (r recorded) tools(s serversfile.Server) (n int, started bool) {
	for _, tenant := range r.tenants {
		tools, _, err := r.known.Known(r.ctx, tenant, s)
		if err != nil {
			return n, true
		}
		n = max(n, len(tools))
		if n == 0 && !started {
			parts, err := r.known.Store.ListHandshakes(r.ctx, storage.RecordFor(tenant, s.RecordDigest()), "")
			started = err != nil || len(parts) > 0
		}
	}
	return n, started || n > 0 || s.InPlace()
}

// startText returns what the list of servers at the start says about a server: for example "11
// tools", "never started", that its last start failed, that its program is missing, or "" if
// nothing is known.
func (m *machine) startText(s serversfile.Server, r recorded) string {
	if !s.InPlace() && m.failed.reasons()[s.Name] != "" {
		return api.FailedLast
	}
	if !s.InPlace() && !s.Record {
		return ""
	}
	switch n, started := r.tools(s); {
	case n > 0:
		return display.Count(n, "tool")
	case started:
		return ""
	case m.missing(s) != nil:
		return api.ProgramMissing
	default:
		return api.NeverStarted
	}
}

// toolsOf returns how many tools a tenant's server has, for example "11 tools". It returns "" if
// that is not known.
func toolsOf(m *machine, tenant, server string) string {
	ctx, cancel := context.WithTimeout(context.Background(), countWithin)
	defer cancel()
	s, ok := m.servers.Load().Server(server)
	if !ok || !s.InPlace() && !s.Record {
		return ""
	}
	n, _ := recordsOf(ctx, m, tenant).tools(s)
	if n == 0 {
		return ""
	}
	return display.Count(n, "tool")
}

// relist is the shortest time between two readings of the same list by [toolNames.has].
const relist = 10 * time.Second

// maxLists limits how many lists of names are kept in memory.
const maxLists = 1_000

// toolNames keeps the names of the tools that servers list. Metrics use only these names as
// labels, so that a caller cannot create labels with names that it invents.
type toolNames struct {
	read func(tenant, server string) map[string]bool // reads the names; returns nil if no list is known

	mu sync.Mutex
	of map[[2]string]nameList // by tenant and server
}

type nameList struct {
	names map[string]bool
	read  time.Time
}

// has reports whether a tenant's server lists a tool. It also returns true if no list of the
// server is known.
func (t *toolNames) has(tenant, server, tool string) bool {
	key := [2]string{tenant, server}
	t.mu.Lock()
	list, known := t.of[key]
	again := !list.names[tool] && (!known || time.Since(list.read) >= relist)
	if again { // other goroutines use the old list meanwhile
		t.keep(key, nameList{list.names, time.Now()})
	}
	t.mu.Unlock()
	if again {
		list = nameList{t.read(tenant, server), time.Now()}
		t.mu.Lock()
		t.keep(key, list)
		t.mu.Unlock()
	}
	return list.names == nil || list.names[tool]
}

// keep stores a list. Call it with mu held.
func (t *toolNames) keep(key [2]string, list nameList) {
	if len(t.of) >= maxLists {
		clear(t.of)
	}
	t.of[key] = list
}

// namesOf returns the names of the tools in all recorded lists of a tenant's server.
func namesOf(m *machine, tenant, server string) map[string]bool {
	ctx, cancel := context.WithTimeout(context.Background(), countWithin)
	defer cancel()
	s, ok := m.servers.Load().Server(server)
	if !ok {
		return nil
	}
	var tools []json.RawMessage
	if s.Native != "" {
		if tools, _, err := m.functions.Operators().Known(ctx, tenant, s); err == nil {
			return named(tools)
		}
		return nil
	}
	parts, err := m.functions.Records().ListHandshakes(ctx, storage.RecordFor(tenant, s.RecordDigest()), wire.MethodToolsList+" ")
	if err != nil {
		return nil
	}
	for _, p := range parts {
		var all []json.RawMessage
		if json.Unmarshal(wire.Lookup(p.Result, "list", "tools"), &all) == nil {
			tools = append(tools, all...)
		}
	}
	return named(tools)
}

// named returns the names of tools, or nil if there are none.
func named(tools []json.RawMessage) map[string]bool {
	if len(tools) == 0 {
		return nil
	}
	names := make(map[string]bool, len(tools))
	for _, raw := range tools {
		if name, ok := wire.String(wire.Lookup(raw, "name")); ok {
			names[name] = true
		}
	}
	return names
}
