package box

import (
	"io"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

const (
	maxStderr = 64 << 10 // bytes of each output of a process that are kept
	maxTail   = 4000     // characters of it that errors tell
)

// ring keeps the last bytes of an output of a process.
type ring struct {
	mu   sync.Mutex
	buf  []byte // at most maxStderr, oldest first from at
	at   int
	over bool // something was overwritten
}

// Write takes everything and never fails.
func (r *ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rest := p
	if room := maxStderr - len(r.buf); room > 0 {
		n := min(room, len(rest))
		r.buf = append(r.buf, rest[:n]...)
		rest = rest[n:]
	}
	for len(rest) > 0 {
		r.over = true
		n := copy(r.buf[r.at:], rest)
		r.at = (r.at + n) % maxStderr
		rest = rest[n:]
	}
	return len(p), nil
}

// text returns what is kept; cut says that it does not begin where the process
// did.
func (r *ring) text() (text string, cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.buf[r.at:]) + string(r.buf[:r.at]), r.over
}

func (r *ring) readFrom(from io.Reader) {
	// What went wrong with reading it is of no use to anyone.
	_, _ = io.CopyBuffer(struct{ io.Writer }{r}, from, make([]byte, 4<<10))
}

// tail returns the last characters of the ring, with secrets hidden and without
// space around.
func (r *ring) tail(hide *redactor) string {
	text, cut := r.text()
	text = hide.text(text)
	if cut {
		text = hide.begin(text)
	}
	text = strings.TrimSpace(strings.ToValidUTF8(hide.end(text), "\uFFFD"))
	n := 0
	for i := len(text); i > 0; n++ {
		if n == maxTail {
			return text[i:]
		}
		_, size := utf8.DecodeLastRuneInString(text[:i])
		i -= size
	}
	return text
}

// lastLine returns the last line of a tail, for a message of one line.
func lastLine(tail string) string {
	return strings.TrimSpace(tail[strings.LastIndexByte(tail, '\n')+1:])
}

// noted keeps a line of stdout that was no message: it may be why the process ends.
func (p *process) noted(line []byte) {
	if len(line) > maxTail {
		line = []byte(p.box.hide.end(p.box.hide.text(string(line[:maxTail]))))
	}
	p.diary.stdout(line)
	_, _ = p.stdout.Write(append(slices.Clone(line), '\n')) // never fails
}

// starved says whether a process that ended by itself did so for want of memory.
// killed says that the kernel has killed something for it meanwhile.
func (p *process) starved(e exit, killed bool) bool {
	if p.stopping || e.code != nil && *e.code == 0 {
		return false
	}
	said, _ := p.stderr.text()
	also, _ := p.stdout.text()
	said = strings.ToLower(said + "\n" + also)
	return killed && e.signal == "SIGKILL" || slices.ContainsFunc([]string{
		"out of memory", "cannot allocate memory", "memoryerror", "bad_alloc", "memory allocation of",
	}, func(words string) bool { return strings.Contains(said, words) })
}
