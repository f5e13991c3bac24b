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

// printer formats lines into out.
type printer struct {
	opts Options
	out  bytes.Buffer

	// Widths of the columns with servers, principals and tools. The list of servers at the start sets
	// the first one. Calls make the other two wider.
	name, who, tool int
}

// line prints a line about a server. For name "" it is about dormouse itself.
func (p *printer) line(at time.Time, name, text string) {
	if !p.opts.Screen {
		p.recordLine(at, name, "note", "what", text)
		return
	}
	p.say("%s  %s  %s", p.dim(clock(at)), pad(name, p.name), text)
}

// hint prints, below the last line, what the user can do.
func (p *printer) hint(text string) {
	if text != "" {
		_, _ = fmt.Fprintf(&p.out, "%s%s\n", strings.Repeat(" ", len("15:04:05")+2+p.name+2), text)
	}
}

// recordLine prints one line of names and values. values alternates names and values; empty values
// are left out.
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

// quoted returns a value in quotes if it has a space or other special characters.
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

// span formats d for people, for example "250 ms", "1.5 s" or "2 min".
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

// roughly formats d in whole seconds, minutes or hours.
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

// length returns how many columns s takes on the screen. Escape sequences for colors take none.
func length(s string) int { return utf8.RuneCountInString(colors.ReplaceAllString(s, "")) }

var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")

// pad appends spaces to s up to a width in columns.
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
	maxWho  = 16 // largest width of the column with the principals' names
	maxTool = 24 // largest width of the column with the tools' names
)

// Count returns a number with its noun, such as "1 call" or "3 calls".
func Count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}
