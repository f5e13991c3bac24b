package history

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// labels are the key of the counts for metrics. For starts of boxes, principal and tool are "".
type labels struct{ tenant, server, principal, tool string }

const (
	maxLabels = 2_000       // combinations of labels of one tenant
	others    = "(others)"  // principal and tool of combinations above maxLabels
	unknown   = "(unknown)" // a tool that its server does not list
)

// Metrics writes the counts since the start of the program, in the text format of Prometheus. The
// function visible reports whether the reader may see a server of a tenant.
func (h *History) Metrics(w io.Writer, visible func(tenant, server string) bool) error {
	h.mu.Lock()
	totals, turned := maps.Clone(h.totals), maps.Clone(h.turned)
	h.mu.Unlock()
	maps.DeleteFunc(totals, func(l labels, _ counts) bool { return !visible(l.tenant, l.server) })
	inOrder := func(a, b labels) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.server, b.server), cmp.Compare(a.principal, b.principal), cmp.Compare(a.tool, b.tool))
	}
	servers := map[labels]counts{}
	var calls, durations, wakes, refused, installs, took strings.Builder
	for _, of := range slices.SortedFunc(maps.Keys(turned), func(a, b refusal) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.reason, b.reason))
	}) {
		if visible(of.tenant, storage.EveryServer) {
			fmt.Fprintf(&refused, "dormouse_refusals_total{%s,reason=%q} %d\n", `tenant="`+escape.Replace(of.tenant)+`"`, of.reason, turned[of])
		}
	}
	for _, l := range slices.SortedFunc(maps.Keys(totals), inOrder) {
		n := totals[l]
		own := labels{tenant: l.tenant, server: l.server}
		servers[own] = servers[own].plus(n)
		if n.calls() > 0 {
			fmt.Fprintf(&calls, "dormouse_tool_calls_total{%s,outcome=\"done\"} %d\n", l, n.calls()-n.failed)
			fmt.Fprintf(&calls, "dormouse_tool_calls_total{%s,outcome=\"failed\"} %d\n", l, n.failed)
		}
	}
	for _, own := range slices.SortedFunc(maps.Keys(servers), inOrder) {
		n := servers[own]
		fmt.Fprintf(&wakes, "dormouse_box_starts_total{%s} %d\n", own, n.wakes)
		fmt.Fprintf(&installs, "dormouse_installs_total{%s} %d\n", own, n.installs)
		fmt.Fprintf(&took, "dormouse_install_seconds_total{%s} %g\n", own, n.installed.Seconds())
		n.histogram(&durations, own)
	}
	_, err := io.WriteString(w, "# HELP dormouse_tool_calls_total Calls of tools that have ended.\n# TYPE dormouse_tool_calls_total counter\n"+calls.String()+
		"# HELP dormouse_refusals_total Requests that were refused: unauthenticated, forbidden, or by the kind of a limit.\n# TYPE dormouse_refusals_total counter\n"+refused.String()+
		"# HELP dormouse_tool_call_duration_seconds Durations of calls, with the start of a box if there was one.\n# TYPE dormouse_tool_call_duration_seconds histogram\n"+durations.String()+
		"# HELP dormouse_box_starts_total Starts of boxes.\n# TYPE dormouse_box_starts_total counter\n"+wakes.String()+
		"# HELP dormouse_installs_total Starts of processes that installed something and became ready.\n# TYPE dormouse_installs_total counter\n"+installs.String()+
		"# HELP dormouse_install_seconds_total How long these installs took.\n# TYPE dormouse_install_seconds_total counter\n"+took.String())
	return err
}

func (c counts) histogram(w *strings.Builder, l labels) {
	var sum int64
	for i, n := range c.durations {
		sum += n
		le := "+Inf"
		if i < len(bounds) {
			le = strconv.FormatFloat(bounds[i]/1000, 'g', -1, 64)
		}
		fmt.Fprintf(w, "dormouse_tool_call_duration_seconds_bucket{%s,le=%q} %d\n", l, le, sum)
	}
	fmt.Fprintf(w, "dormouse_tool_call_duration_seconds_sum{%s} %g\n", l, c.took.Seconds())
	fmt.Fprintf(w, "dormouse_tool_call_duration_seconds_count{%s} %d\n", l, sum)
}

// String returns the labels that are not empty, in the text format of Prometheus.
func (l labels) String() string {
	var all []string
	for _, p := range [][2]string{{"tenant", l.tenant}, {"server", l.server}, {"principal", l.principal}, {"tool", l.tool}} {
		if p[1] != "" {
			all = append(all, p[0]+`="`+escape.Replace(p[1])+`"`)
		}
	}
	return strings.Join(all, ",")
}

// Escape escapes a text for the value of a label, between quotes.
func Escape(text string) string { return escape.Replace(text) }

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
