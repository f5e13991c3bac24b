package proc

import (
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/shared/box/redact"
)

// lately is the longest pause in a burst of output; see [Tail.Lately].
const lately = time.Second

const (
	maxKept = 64 << 10 // bytes that a Tail keeps
	// MaxTail is the most characters that [Tail.Last] returns.
	MaxTail = 4000
)

// Tail keeps the last 64 KiB of an output of a process. The zero Tail is ready to use.
type Tail struct {
	mu   sync.Mutex
	buf  []byte // at most maxKept, oldest first from at
	at   int
	over bool // something was overwritten

	total int64     // bytes so far
	wrote time.Time // when the last of them came
	burst int64     // bytes before the last burst
}

// Write takes all of p and never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Sub(t.wrote) > lately {
		t.burst = t.total
	}
	t.total, t.wrote = t.total+int64(len(p)), now
	rest := p
	if room := maxKept - len(t.buf); room > 0 {
		n := min(room, len(rest))
		t.buf = append(t.buf, rest[:n]...)
		rest = rest[n:]
	}
	for len(rest) > 0 {
		t.over = true
		n := copy(t.buf[t.at:], rest)
		t.at = (t.at + n) % maxKept
		rest = rest[n:]
	}
	return len(p), nil
}

// Text returns the kept output, without the first bytes that the process wrote. cut says
// that earlier output was dropped.
func (t *Tail) Text(first int64) (text string, cut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text, cut = string(t.buf[t.at:])+string(t.buf[:t.at]), t.over
	if older := first - (t.total - int64(len(text))); older > 0 {
		text, cut = text[min(older, int64(len(text))):], true
	}
	return text, cut
}

// Total returns how many bytes the process has written.
func (t *Tail) Total() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

// Lately returns how many bytes the process had written before what it writes just now: the
// output of the last second, and what came before that without a pause of a second.
func (t *Tail) Lately() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.wrote) > lately {
		return t.total
	}
	return t.burst
}

// ReadAll reads from until it ends, and keeps the tail.
func (t *Tail) ReadAll(from io.Reader) {
	// A read error just ends the tail.
	_, _ = io.CopyBuffer(struct{ io.Writer }{t}, from, make([]byte, 4<<10))
}

// Last returns the last characters, up to [MaxTail], with secrets hidden and surrounding
// space removed.
func (t *Tail) Last(hide *redact.Redactor) string { return t.Since(0, hide) }

// Since is [Tail.Last] without the first bytes that the process wrote.
func (t *Tail) Since(first int64, hide *redact.Redactor) string {
	text, cut := t.Text(first)
	text = hide.Text(text)
	if cut {
		text = hide.Begin(text)
	}
	text = strings.TrimSpace(strings.ToValidUTF8(hide.End(text), "\uFFFD"))
	n := 0
	for i := len(text); i > 0; n++ {
		if n == MaxTail {
			return text[i:]
		}
		_, size := utf8.DecodeLastRuneInString(text[:i])
		i -= size
	}
	return text
}
