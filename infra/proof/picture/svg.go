package main

import (
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"
	"time"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"
)

// shot is a text that a row shows from one time until another.
type shot struct {
	row         int
	text        string // SVG
	from, until time.Duration
}

// grain is the shortest time for which the picture shows something.
const grain = 100 * time.Millisecond

// forever is the end of a shot that is still visible.
const forever time.Duration = -1

// take records the rows of a terminal that have changed.
func (r *reel) take(t *terminal) {
	now := r.now.Truncate(grain)
	for y := range t.screen.Height() {
		text := row(t, y)
		i := slices.IndexFunc(r.shots, func(s shot) bool { return s.row == t.top+y && s.until == forever })
		if i >= 0 {
			if r.shots[i].text == text {
				continue
			}
			if r.shots[i].until = now; r.shots[i].from == now {
				r.shots = slices.Delete(r.shots, i, i+1)
			}
		}
		if text != "" {
			r.shots = append(r.shots, shot{row: t.top + y, text: text, from: now, until: forever})
		}
	}
}

// row returns a row of a terminal as SVG, "" for an empty one.
func row(t *terminal, y int) string {
	var b strings.Builder
	class, run := "", ""
	flush := func() {
		switch {
		case run == "":
		case class == "":
			b.WriteString(html.EscapeString(run))
		default:
			fmt.Fprintf(&b, `<tspan class="%s">%s</tspan>`, class, html.EscapeString(run))
		}
		run = ""
	}
	for x := range columns {
		cell := t.screen.CellAt(x, y)
		content, style := " ", uv.Style{}
		if cell != nil {
			content, style = cmp.Or(cell.Content, " "), cell.Style
		}
		if of := classOf(style); of != class {
			flush()
			class = of
		}
		run += content
	}
	if class == "" {
		run = strings.TrimRight(run, " ")
	}
	flush()
	return strings.TrimRight(b.String(), " ")
}

// classOf returns the CSS class of a style: "d" for faint, "r" for red, and "" for plain text.
func classOf(s uv.Style) string {
	switch {
	case s.Attrs&uv.AttrFaint != 0:
		return "d"
	case s.Fg == ansi.Red:
		return "r"
	}
	return ""
}

const (
	wide, high = 8.4, 19 // size of a character
	edge       = 14
	gap        = 34 // between terminals, with a title
)

const style = `text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre;fill:#1f2328}
.t{font-size:12px;fill:#656d76}.d{fill:#656d76}.r{fill:#cf222e}rect{fill:#f6f8fa;stroke:#d0d7de}
.s{visibility:hidden;animation:%.1fs step-end infinite}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.t,.d{fill:#8d96a0}.r{fill:#ff7b72}rect{fill:#0d1117;stroke:#30363d}}
@media(prefers-reduced-motion:reduce){.s{animation:none}.e{visibility:visible}}
`

// svg returns the picture. It has all texts, and each is visible for its time only.
// Viewers who prefer reduced motion see the last state.
func (r *reel) svg() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	whole := r.now.Truncate(grain)
	var b, frames, texts strings.Builder
	names := map[[2]time.Duration]int{}
	tops := map[int]float64{} // by row
	width, y := columns*wide+2*edge, 0.0
	var windows strings.Builder
	for i, t := range r.all {
		height := float64(t.screen.Height()*high + edge)
		fmt.Fprintf(&windows, `<text class="t" x="%d" y="%.0f">terminal %d</text><rect x=".5" y="%.1f" width="%.0f" height="%.0f" rx="6"/>`+"\n", edge, y+16, i+1, y+24.5, width-1, height)
		for n := range t.screen.Height() {
			tops[t.top+n] = y + gap + float64((n+1)*high) - 7
		}
		y += gap - 8 + height
	}
	for _, s := range r.shots {
		class := "s"
		if s.until == forever {
			s.until, class = whole, "s e"
		}
		times := [2]time.Duration{s.from, s.until}
		if _, named := names[times]; !named {
			names[times] = len(names)
			fmt.Fprintf(&frames, "@keyframes k%d{%s{visibility:visible}%s}\n", names[times], percent(s.from, whole), hide(s.until, whole))
		}
		fmt.Fprintf(&texts, `<text class="%s" style="animation-name:k%d" x="%d" y="%.0f">%s</text>`+"\n", class, names[times], edge, tops[s.row], s.text)
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img" aria-label="Two terminals: a server is added, hosted, called, and falls asleep">`+"\n", width, y, width, y)
	fmt.Fprintf(&b, "<style>"+style, whole.Seconds())
	b.WriteString(frames.String() + "</style>\n" + windows.String() + texts.String() + "</svg>\n")
	return []byte(b.String())
}

func percent(at, whole time.Duration) string {
	return strings.TrimSuffix(fmt.Sprintf("%.2f", 100*at.Seconds()/whole.Seconds()), ".00") + "%"
}

// hide returns the keyframe that hides a text at a time. A text that stays to the end
// needs none.
func hide(at, whole time.Duration) string {
	if at >= whole {
		return ""
	}
	return percent(at, whole) + "{visibility:hidden}"
}
