package display

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// printer gathers the lines to print.
type printer struct {
	opts Options
	out  bytes.Buffer

	// The widths of columns. The list of servers at the start sets that of the names of servers.
	// Those of principals and tools grow with longer texts.
	name, who, tool int
}

// line prints a line about a server, or about none if name is "".
func (p *printer) line(at time.Time, name, text string) {
	if p.opts.Form == Records {
		p.recordLine(at, name, "note", "what", text)
		return
	}
	p.wrapped(fmt.Sprintf("%s  %s  ", p.dim(clock(at)), pad(name, p.name)), text)
}

// hint prints what to do about the line above.
func (p *printer) hint(text string) {
	if text != "" {
		_, _ = fmt.Fprintf(&p.out, "%s%s\n", strings.Repeat(" ", len("15:04:05")+2+p.name+2), text)
	}
}

// wrapped prints a text after the beginning of a line. Where the screen ends, it
// continues the text below.
func (p *printer) wrapped(begin, text string) {
	width := p.opts.Width() - length(begin)
	if p.opts.Form == Records || width < 20 {
		p.say("%s%s", begin, text)
		return
	}
	for text != "" {
		part := text
		if length(part) > width {
			part = string([]rune(part)[:width])
			if at := strings.LastIndexByte(part, ' '); at > 0 {
				part = part[:at]
			}
		}
		p.say("%s%s", begin, part)
		text, begin = strings.TrimLeft(text[len(part):], " "), strings.Repeat(" ", length(begin))
	}
}

// recordLine prints a line of names and values, without those that are empty.
func (p *printer) recordLine(at time.Time, name, kind string, values ...string) {
	if p.opts.Stamps {
		_, _ = fmt.Fprintf(&p.out, "%s ", at.UTC().Format("2006-01-02T15:04:05Z"))
	}
	_, _ = fmt.Fprintf(&p.out, "%s %s", cmp.Or(name, "dormouse"), kind)
	for i := 0; i+1 < len(values); i += 2 {
		if value := values[i+1]; value != "" {
			_, _ = fmt.Fprintf(&p.out, " %s=%s", values[i], quoted(value))
		}
	}
	p.out.WriteByte('\n')
}

// quoted quotes a value that is more than one word.
func quoted(value string) string {
	plain := func(r rune) bool {
		return r == '-' || r == '_' || r == '.' || r == '/' || r == ':' || r == '@' || r == ',' ||
			r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if strings.ContainsFunc(value, func(r rune) bool { return !plain(r) }) {
		return strconv.Quote(value)
	}
	return value
}

func (p *printer) say(format string, args ...any) { _, _ = fmt.Fprintf(&p.out, format+"\n", args...) }

func clock(at time.Time) string { return at.Local().Format("15:04:05") }

// span formats d with at most three digits before the unit.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	default:
		return roughly(d)
	}
}

// roughly formats d in its largest whole unit.
func roughly(d time.Duration) string {
	switch {
	case d < 100*time.Second:
		return fmt.Sprintf("%d s", int(d.Seconds()+0.5))
	case d < 100*time.Minute:
		return fmt.Sprintf("%d min", int(d.Minutes()+0.5))
	default:
		return fmt.Sprintf("%d h", int(d.Hours()+0.5))
	}
}

// length returns the columns that s takes on the screen, whose colors take none.
func length(s string) int { return utf8.RuneCountInString(colors.ReplaceAllString(s, "")) }

var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")

// pad fills s up to a width in characters.
func pad(s string, width int) string { return s + strings.Repeat(" ", max(0, width-length(s))) }

func joined(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), sep)
}

func (p *printer) red(s string) string    { return p.colored("31", s) }
func (p *printer) yellow(s string) string { return p.colored("33", s) }
func (p *printer) dim(s string) string    { return p.colored("2", s) }

func (p *printer) colored(code, s string) string {
	if !p.opts.Color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

const (
	minName = 8  // least width of the column of servers
	maxWho  = 16 // largest width of the column of principals
	maxTool = 24 // largest width of the column of tools
)

func plural(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}
