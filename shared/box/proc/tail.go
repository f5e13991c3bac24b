package proc

import (
	"io"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/shared/box/redact"
)

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
}

// Write takes all of p and never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
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

// Text returns the kept output. cut says that earlier output was dropped.
func (t *Tail) Text() (text string, cut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf[t.at:]) + string(t.buf[:t.at]), t.over
}

// ReadAll reads from until it ends, and keeps the tail.
func (t *Tail) ReadAll(from io.Reader) {
	// A read error just ends the tail.
	_, _ = io.CopyBuffer(struct{ io.Writer }{t}, from, make([]byte, 4<<10))
}

// Last returns the last characters, up to [MaxTail], with secrets hidden and surrounding
// space removed.
func (t *Tail) Last(hide *redact.Redactor) string {
	text, cut := t.Text()
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
