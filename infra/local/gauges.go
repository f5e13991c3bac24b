package local

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/history"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// gaugesWithin limits how long metricsOf looks for what runs.
const gaugesWithin = 5 * time.Second

// gauge counts what runs for a tenant on one server. The field memory is in bytes.
type gauge struct{ processes, sessions, queue, memory int64 }

type ofServer struct{ tenant, server string }

// metricsOf writes metrics in the text format of Prometheus: the counts of the history, and what
// runs now. A reader who may see every server also gets the metrics of this program.
func metricsOf(m *machine, w io.Writer, may func(tenant, server string) bool) error {
	if err := m.history.Metrics(w, may); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), gaugesWithin)
	defer cancel()
	now, err := gaugesOf(ctx, m, may)
	if err != nil {
		return err
	}
	keys := slices.SortedFunc(maps.Keys(now), func(a, b ofServer) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.server, b.server))
	})
	var text strings.Builder
	for _, of := range []struct {
		name, help string
		value      func(*gauge) int64
	}{
		{"dormouse_processes_awake", "Processes of servers that run.", func(g *gauge) int64 { return g.processes }},
		{"dormouse_sessions", "Sessions that are open.", func(g *gauge) int64 { return g.sessions }},
		{"dormouse_queue_requests", "Requests that wait for a box, and those that take long in it.", func(g *gauge) int64 { return g.queue }},
		{"dormouse_server_memory_bytes", "Memory of the processes of a server's box, on Linux.", func(g *gauge) int64 { return g.memory }},
	} {
		header(&text, of.name, "gauge", of.help)
		for _, k := range keys {
			fmt.Fprintf(&text, "%s{tenant=%s,server=%s} %d\n", of.name, label(k.tenant), label(k.server), of.value(now[k]))
		}
	}
	if may("", storage.EveryServer) {
		ownMetrics(&text)
	}
	_, err = io.WriteString(w, text.String())
	return err
}

// gaugesOf counts what runs, for the tenants and servers that the reader may see.
func gaugesOf(ctx context.Context, m *machine, may func(tenant, server string) bool) (map[ofServer]*gauge, error) {
	now := map[ofServer]*gauge{}
	at := func(tenant, server string) *gauge {
		k := ofServer{tenant, server}
		if now[k] == nil {
			now[k] = &gauge{}
		}
		return now[k]
	}
	store := m.functions.Records()
	for s, err := range storage.AllSessions(ctx, store, "", "") {
		if err != nil {
			return nil, err
		}
		if s.State != storage.Ended && may(s.Tenant, s.Server) {
			at(s.Tenant, s.Server).sessions++
		}
	}
	s, err := statusOf(ctx, m)
	if err != nil {
		return nil, err
	}
	for _, b := range s.Boxes {
		tenant, server := storage.BoxID(b.Box).Parts()
		if !may(tenant, server) {
			continue
		}
		g := at(tenant, server)
		for _, p := range b.Processes {
			g.memory += p.Memory
		}
		items, err := store.Items(ctx, storage.BoxID(b.Box))
		if err != nil {
			return nil, err
		}
		g.queue += int64(len(items))
	}
	for _, p := range s.Processes {
		tenant, server := storage.BoxID(p.Box).Parts()
		if (p.State == "started" || p.State == "ready") && may(tenant, server) {
			at(tenant, server).processes++
		}
	}
	return now, nil
}

// ownMetrics writes the metrics of this program, with the names that the Go client of Prometheus
// uses.
func ownMetrics(w io.Writer) {
	header(w, "dormouse_build_info", "gauge", "The version of this program.")
	_, _ = fmt.Fprintf(w, "dormouse_build_info{version=%s,goversion=%s} 1\n", label(api.Version()), label(runtime.Version()))
	for _, of := range []struct{ name, kind, help, from string }{
		{"go_goroutines", "gauge", "Goroutines that exist.", "/sched/goroutines:goroutines"},
		{"go_gc_cycles_total_gc_cycles_total", "counter", "Garbage collections.", "/gc/cycles/total:gc-cycles"},
		{"go_memstats_heap_objects", "gauge", "Objects on the heap.", "/gc/heap/objects:objects"},
		{"go_memstats_alloc_bytes", "gauge", "Bytes of the objects on the heap.", "/memory/classes/heap/objects:bytes"},
		{"go_memstats_sys_bytes", "gauge", "Bytes that the system gave to the Go runtime.", "/memory/classes/total:bytes"},
	} {
		sample := []metrics.Sample{{Name: of.from}}
		if metrics.Read(sample); sample[0].Value.Kind() == metrics.KindUint64 {
			header(w, of.name, of.kind, of.help)
			_, _ = fmt.Fprintf(w, "%s %d\n", of.name, sample[0].Value.Uint64())
		}
	}
	if bytes := residentBytes(os.Getpid()); bytes > 0 {
		header(w, "process_resident_memory_bytes", "gauge", "Memory of this program.")
		_, _ = fmt.Fprintf(w, "process_resident_memory_bytes %d\n", bytes)
	}
}

func header(w io.Writer, name, kind, help string) {
	_, _ = fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func label(text string) string { return `"` + history.Escape(text) + `"` }
