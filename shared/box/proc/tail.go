package proc

import (
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/shared/box/redact"
)

// lately is the longest pause within one burst of output; see [Tail.Lately].
const lately = time.Second

const (
	maxKept = 64 << 10 // bytes that a Tail keeps
	// MaxTail is how many characters [Tail.Since] returns at most.
	MaxTail = 4000
)

// Tail keeps the last 64 KiB of an output stream of a process. The zero Tail is ready to use.
type Tail struct {
	mu   sync.Mutex
	buf  []byte // at most maxKept bytes; the oldest is buf[at]
	at   int
	over bool // something was overwritten, so older output is lost

	total int64     // bytes written so far
	wrote time.Time // when something was last written
	burst int64     // bytes written before the last burst
}

// Write appends p and never fails.
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

// Text returns the kept output, but omits the first skip bytes that the process wrote. The result
// cut reports whether output before text is missing.
func (t *Tail) Text(skip int64) (text string, cut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text, cut = string(t.buf[t.at:])+string(t.buf[:t.at]), t.over
	if older := skip - (t.total - int64(len(text))); older > 0 {
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

// Lately returns how many bytes the process had written before its current burst of output. A
// burst is output without a pause of more than a second.
func (t *Tail) Lately() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.wrote) > lately {
		return t.total
	}
	return t.burst
}

// ReadAll reads r to its end, and keeps the tail of the output.
func (t *Tail) ReadAll(r io.Reader) {
	// An error only ends the tail.
	_, _ = io.CopyBuffer(struct{ io.Writer }{t}, r, make([]byte, 4<<10))
}

// Since returns the last characters, at most [MaxTail], with secrets replaced and surrounding space
// removed. It omits the first skip bytes that the process wrote.
func (t *Tail) Since(skip int64, hide *redact.Redactor) string {
	text, cut := t.Text(skip)
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
