package display

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// bottom is the part of a screen that is rewritten: a line for each install in progress, and the
// status line.
type bottom struct {
	Lines
	installs []install
	closed   bool
	started  bool // the first block was printed
}

// install says what is being installed for a process of a server, and since when.
type install struct {
	server, process string
	what            string
	since           time.Time
}

// note updates b.installs: an event may begin, change or end an install.
func (b *bottom) note(e journal.Event) {
	same := func(i install) bool { return i.server == e.Name && i.process == e.Process }
	at := slices.IndexFunc(b.installs, same)
	switch e.Kind {
	case journal.ServerInstalling:
		if at < 0 {
			b.installs = append(b.installs, install{server: e.Name, process: e.Process, since: e.Time})
			at = len(b.installs) - 1
		}
		b.installs[at].what = e.Detail
	case journal.ServerReady, journal.ServerFailed, journal.ServerStopped:
		b.installs = slices.DeleteFunc(b.installs, same)
	case journal.BoxCrash, journal.BoxSleep:
		b.installs = slices.DeleteFunc(b.installs, func(i install) bool { return i.server == e.Name })
	}
}

// next returns how long the lines stay as they are without an event. The line of an install counts
// its seconds.
func (b *bottom) next() time.Duration {
	if len(b.installs) > 0 {
		return time.Second
	}
	return time.Hour
}

// installing returns a line for each install in progress. The argument width is that of the column
// with the servers' names.
func (b *bottom) installing(now time.Time, width int) []string {
	var lines []string
	for _, i := range b.installs {
		took := fmt.Sprintf("%d s", int(now.Sub(i.since).Seconds()))
		lines = append(lines, fmt.Sprintf("%s  %-*s  %s … %s", clock(i.since), width, i.server, i.what, took))
	}
	return lines
}

func (b *bottom) close() { b.installs, b.closed = nil, true }

// Control sequences of terminals.
const (
	up    = "\x1b[%dA" // moves the cursor up by %d lines
	clear = "\x1b[J"   // clears from the cursor to the end of the screen
)

// Lines are the last lines of a screen, which are rewritten.
type Lines struct{ shown []string }

// Frame returns the bytes that replace the lines by text and, below it, other lines.
func (b *Lines) Frame(text []byte, lines []string, width int) []byte {
	for i, l := range lines {
		lines[i] = cut(l, width-1) // a line that fills the width would make the terminal begin another line
	}
	if len(text) == 0 && slices.Equal(lines, b.shown) {
		return nil
	}
	var out bytes.Buffer
	if n := len(b.shown); n > 0 {
		out.WriteByte('\r')
		if n > 1 {
			_, _ = fmt.Fprintf(&out, up, n-1)
		}
		out.WriteString(clear)
	}
	out.Write(text)
	out.WriteString(strings.Join(lines, "\n"))
	b.shown = lines
	return out.Bytes()
}

// cut shortens a line to width characters.
func cut(line string, width int) string {
	if utf8.RuneCountInString(line) <= width || width < 1 {
		return line
	}
	return string([]rune(line)[:width-1]) + "…"
}
