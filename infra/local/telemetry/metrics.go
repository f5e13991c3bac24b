package telemetry

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/otlp"
)

// bounds returns the upper bounds of histogram buckets in the conventions for MCP, in
// seconds.
func bounds() []float64 {
	return []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300}
}

// maxPoints bounds the combinations of attributes of one metric and tenant: clients choose
// the names of methods and tools. Further combinations are counted under others. Calls of
// tools that no list of their server has are counted under unknown.
const (
	maxPoints = 2_000
	others    = "(others)"
	unknown   = "(unknown)"
)

// The attributes that a tenant's bound is about.
const (
	attrTenant = "dormouse.tenant"
	attrTool   = "gen_ai.tool.name"
)

// metrics counts since the start of the program.
type metrics struct {
	since     time.Time
	durations map[string]*otlp.Point // by their attributes
	wakes     map[string]*otlp.Point
	tenants   map[string]int // how many of durations are of a tenant
}

func newMetrics(now time.Time) metrics {
	return metrics{now, map[string]*otlp.Point{}, map[string]*otlp.Point{}, map[string]int{}}
}

// duration returns the data point of durations with these attributes. Beyond the bound of
// its tenant, it is that of others.
func (m metrics) duration(attributes map[string]string) *otlp.Point {
	tenant := attributes[attrTenant]
	if m.durations[keyOf(attributes)] == nil {
		if m.tenants[tenant] < maxPoints {
			m.tenants[tenant]++
		} else {
			for _, name := range []string{attrTool, "mcp.method.name", "mcp.protocol.version", "user.id"} {
				if attributes[name] != "" {
					attributes[name] = others
				}
			}
		}
	}
	return m.point(m.durations, attributes)
}

// point returns the data point with these attributes. It makes the point if it is new.
func (m metrics) point(of map[string]*otlp.Point, attributes map[string]string) *otlp.Point {
	key := keyOf(attributes)
	if of[key] == nil {
		of[key] = &otlp.Point{Attributes: attributes, Begin: m.since}
	}
	return of[key]
}

// keyOf returns a text that two equal maps share. Maps are printed in the order of their
// keys.
func keyOf(attributes map[string]string) string { return fmt.Sprintf("%q", attributes) }

func (m metrics) request(e journal.Event, o Options) {
	attributes := o.requestOf(e).Kind()
	if e.Unlisted {
		attributes[attrTool] = unknown
	}
	p := m.duration(attributes)
	if p.Buckets == nil {
		p.Bounds = bounds()
		p.Buckets = make([]uint64, len(p.Bounds)+1)
	}
	i, _ := slices.BinarySearch(p.Bounds, e.Duration.Seconds())
	p.Buckets[i]++
	p.Count++
	p.Sum += e.Duration.Seconds()
}

func (m metrics) wake(e journal.Event) {
	m.point(m.wakes, map[string]string{"dormouse.server": e.Name, attrTenant: e.Tenant}).Count++
}

// snapshot returns copies of all metrics.
func (m metrics) snapshot() ([]otlp.Histogram, []otlp.Counter) {
	return []otlp.Histogram{{Name: "mcp.server.operation.duration", About: "Duration of requests of clients, with the start of a box if there was one.", Points: copied(m.durations)}},
		[]otlp.Counter{{Name: "dormouse.box.starts", About: "Starts of boxes.", Unit: "{start}", Points: copied(m.wakes)}}
}

func copied(of map[string]*otlp.Point) []otlp.Point {
	all := make([]otlp.Point, 0, len(of))
	for _, key := range slices.Sorted(maps.Keys(of)) {
		p := *of[key]
		p.Buckets = slices.Clone(p.Buckets)
		all = append(all, p)
	}
	return all
}
