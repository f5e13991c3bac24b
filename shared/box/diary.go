package box

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxDiaryLine is how many bytes of a line are written at once.
const maxDiaryLine = 16 << 10

// diary writes down what one process says on its stderr, and on its stdout beside
// messages, for people who look later. It hides secrets, so it writes no line before it
// is whole. A nil diary writes nothing.
type diary struct {
	to   io.WriteCloser
	hide *redactor

	mu     sync.Mutex
	err    []byte // of stderr, not written yet
	out    []byte // of stdout
	closed bool
}

// diary opens the diary of a process.
func (s Server) diary(session string, hide *redactor) *diary {
	if s.Stderr == nil {
		return nil
	}
	to := s.Stderr(session)
	if to == nil {
		return nil
	}
	return &diary{to: to, hide: hide}
}

// Write takes what the process says on stderr. It takes everything and never fails: what
// a process says must be read on.
func (d *diary) Write(p []byte) (int, error) {
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.add(&d.err, "", p)
	}
	return len(p), nil
}

// ofStdout is before each line of stdout.
const ofStdout = "stdout: "

// stdout takes a line of stdout that is no message.
func (d *diary) stdout(line []byte) {
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.add(&d.out, ofStdout, append(slices.Clone(line), '\n'))
	}
}

// add writes what there is of whole lines. Lines that end in the beginning of a secret
// wait for the next.
func (d *diary) add(held *[]byte, of string, p []byte) {
	*held = append(*held, p...)
	if bytes.IndexByte(p, '\n') < 0 && len(*held) <= maxDiaryLine {
		return
	}
	end := d.hide.before(*held, len(*held) <= maxDiaryLine)
	if len(*held)-end > 2*maxDiaryLine {
		d.flush(held, of)
		return
	}
	d.write((*held)[:end], of)
	*held = append((*held)[:0], (*held)[end:]...)
}

func (d *diary) write(text []byte, of string) {
	if d.closed || len(text) == 0 {
		return
	}
	said := strings.ToValidUTF8(d.hide.text(string(text)), "\uFFFD")
	if of != "" {
		said = of + strings.ReplaceAll(strings.TrimSuffix(said, "\n"), "\n", "\n"+of) + "\n"
	}
	_, _ = io.WriteString(d.to, said) // there is nobody to tell
}

// note writes a line about the process, between those of it.
func (d *diary) note(format string, args ...any) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flush(&d.out, ofStdout)
	d.flush(&d.err, "")
	d.write(fmt.Appendf(nil, "--- %s %s\n", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), fmt.Sprintf(format, args...)), "")
}

// flush writes what waits, with an end if it has none.
func (d *diary) flush(held *[]byte, of string) {
	if len(*held) == 0 {
		return
	}
	text := d.hide.end(string(*held))
	d.write([]byte(strings.TrimSuffix(text, "\n")+"\n"), of)
	*held = (*held)[:0]
}

// close writes how it ended.
func (d *diary) close(how string) {
	if d == nil {
		return
	}
	d.note("%s", how)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	_ = d.to.Close() // as with write
}
