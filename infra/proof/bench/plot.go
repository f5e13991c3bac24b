package main

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// plot is a picture of bars, in panels below each other.
type plot struct {
	file   string
	panels []panel
}

// panel has a bar for each compared program (peer): the median of a metric, and a line from min to
// max.
type panel struct {
	title, part, metric string
	peers               []string
}

// plots returns the plots that docs/benchmarks.md shows.
func plots() []plot {
	hosts := []string{"dormouse", "dormouse-disk", "supergateway", "mcp-proxy", "tbxark", "punkpeye", "mcpagent", "native"}
	few := []string{"dormouse", "supergateway", "mcp-proxy", "mcpagent", "native"}
	return []plot{
		{"latency.svg", []panel{
			{"tools/call, one at a time: p50, ms", "latency", "p50 at 1", hosts},
			{"16 clients: calls a second", "latency", "calls at 16", hosts},
			{"16 clients: CPU of a call, all processes, ms", "latency", "CPU a call at 16", hosts},
			{"initialize: p50, ms", "latency", "initialize p50", few},
		}},
		{"idle.svg", []panel{
			{"100 idle sessions: processes", "idle", "processes at 100", few},
			{"100 idle sessions: memory (PSS), MB", "idle", "PSS at 100", few},
			{"1,000 idle sessions: processes", "idle", "processes at 1000", few},
			{"1,000 idle sessions: memory (PSS), MB", "idle", "PSS at 1000", few},
		}},
	}
}

// has reports whether there is anything to draw.
func (p plot) has(s samples) bool {
	return slices.ContainsFunc(s, func(x sample) bool {
		return slices.ContainsFunc(p.panels, func(panel panel) bool { return panel.part == x.Part && panel.metric == x.Metric })
	})
}

// Sizes in pixels.
const (
	plotWidth  = 720
	plotLeft   = 170 // where the bars begin
	plotRight  = 110 // room for numbers
	rowHeight  = 22
	titleSpace = 34
)

// draw writes the picture. A program without the metric has no bar.
func (p plot) draw(s samples) string {
	var b strings.Builder
	y := 8
	for _, panel := range p.panels {
		y = panel.draw(&b, s, y)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="#ffffff"/>
%s</svg>
`, plotWidth, y+8, b.String())
}

// draw draws one panel from y down and returns where it ends.
func (p panel) draw(b *strings.Builder, s samples, y int) int {
	var top float64
	for _, peer := range p.peers {
		if x := s.spread(p.part, peer, p.metric); x.N > 0 {
			top = max(top, x.Max)
		}
	}
	if top == 0 {
		return y
	}
	fmt.Fprintf(b, `<text x="8" y="%d" font-weight="600" fill="#1f2328">%s</text>`+"\n", y+20, html.EscapeString(p.title))
	y += titleSpace
	at := func(v float64) float64 { return plotLeft + v/top*(plotWidth-plotLeft-plotRight) }
	for _, peer := range p.peers {
		x := s.spread(p.part, peer, p.metric)
		if x.N == 0 {
			continue
		}
		colour := "#8c959f"
		if strings.HasPrefix(peer, "dormouse") {
			colour = "#2f6f4f"
		}
		middle := y + rowHeight/2
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end" fill="#1f2328">%s</text>`, plotLeft-8, middle+4, html.EscapeString(peer))
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, plotLeft, y+3, max(1, at(x.Mid)-plotLeft), rowHeight-6, colour)
		fmt.Fprintf(b, `<path d="M%.1f %dH%.1fM%.1f %dv8M%.1f %dv8" stroke="#1f2328" fill="none"/>`, at(x.Min), middle, at(x.Max), at(x.Min), middle-4, at(x.Max), middle-4)
		fmt.Fprintf(b, `<text x="%.1f" y="%d" fill="#1f2328">%s</text>`+"\n", at(x.Max)+8, middle+4, figure(x.Mid))
		y += rowHeight
	}
	return y + 8
}
