package box

import (
	"cmp"
	"io"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

const (
	maxStderr = 64 << 10 // bytes of a process's stderr that are kept
	maxTail   = 4000     // characters of it that errors tell
	minSecret = 6        // bytes; shorter values are words, not secrets
	hidden    = "***"
)

// stderrRing keeps the last bytes a process wrote to its stderr.
type stderrRing struct {
	mu   sync.Mutex
	buf  []byte // at most maxStderr, oldest first from at
	at   int
	over bool // something was overwritten
}

// Write takes everything and never fails.
func (r *stderrRing) Write(p []byte) (int, error) {
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
func (r *stderrRing) text() (text string, cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.buf[r.at:]) + string(r.buf[:r.at]), r.over
}

func (r *stderrRing) readFrom(from io.Reader) {
	// What went wrong with reading it is of no use to anyone.
	_, _ = io.CopyBuffer(struct{ io.Writer }{r}, from, make([]byte, 4<<10))
}

// tail returns the last characters of the ring, with secrets hidden and without
// space around.
func (r *stderrRing) tail(hide *redactor) string {
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

// redactor hides the secrets of a server's environment.
type redactor struct {
	secrets []string // longest first, so that one within another is no way in
	all     *strings.Replacer
	parts   *strings.Replacer // the lines of secrets that have several
}

// newRedactor hides the values of variables with names that look secret, and those
// of the ones that are marked so.
func newRedactor(env map[string]string, marked []string) *redactor {
	r := &redactor{}
	for name, value := range env {
		if len(value) >= minSecret && looksSecret(name) || value != "" && slices.Contains(marked, name) {
			r.secrets = append(r.secrets, value)
		}
	}
	slices.SortFunc(r.secrets, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b))
	})
	var pairs []string
	for _, s := range r.secrets {
		pairs = append(pairs, s, hidden)
	}
	r.all = strings.NewReplacer(pairs...)
	for _, s := range r.secrets {
		for line := range strings.Lines(s) {
			if line = strings.TrimSpace(line); len(line) >= minSecret {
				pairs = append(pairs, line, hidden)
			}
		}
	}
	r.parts = strings.NewReplacer(pairs...)
	return r
}

func looksSecret(name string) bool {
	name = strings.ToUpper(name)
	return slices.ContainsFunc([]string{"KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "AUTH"}, func(word string) bool {
		return strings.Contains(name, word)
	})
}

// text hides the secrets in s.
func (r *redactor) text(s string) string { return r.all.Replace(s) }

// lines hides the secrets in some lines, also one that goes on in the lines before
// or after.
func (r *redactor) lines(s string) string { return r.parts.Replace(s) }

// before is how much of s can be told though more of it is to come: all but what may
// be the beginning of a secret.
func (r *redactor) before(s []byte) int {
	if len(r.secrets) == 0 {
		return len(s)
	}
	// Secrets do not overlap what is before the longest one's length, or they begin
	// there and are whole.
	cut := max(0, len(s)-len(r.secrets[0]))
	for _, secret := range r.secrets {
		from := max(0, cut-len(secret)+1)
		if i := strings.Index(string(s[from:]), secret); i >= 0 && from+i < cut {
			cut = from + i
		}
	}
	return cut
}

// begin hides the rest of a secret that s begins with.
func (r *redactor) begin(s string) string {
	for _, secret := range r.secrets {
		for i := 1; i <= len(secret)-minSecret/2; i++ {
			if rest, ok := strings.CutPrefix(s, secret[i:]); ok {
				return hidden + rest
			}
		}
	}
	return s
}

// end hides the beginning of a secret that s ends with: the process may have been
// in the middle of writing it.
func (r *redactor) end(s string) string {
	for _, secret := range r.secrets {
		for i := len(secret) - 1; i >= minSecret/2; i-- {
			if rest, ok := strings.CutSuffix(s, secret[:i]); ok {
				return rest + hidden
			}
		}
	}
	return s
}
