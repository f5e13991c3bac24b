package proc

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/redact"
)

// maxLogLine is how many bytes of a line are written at once.
const maxLogLine = 16 << 10

// Log keeps what one process says on its stderr, and on its stdout beside messages. It
// hides secrets, so it writes a line only when it has all of it. A nil Log writes nothing.
// Its methods may be called by several goroutines.
type Log struct {
	to   io.WriteCloser
	hide *redact.Redactor

	mu     sync.Mutex
	err    []byte // of stderr, not written yet
	out    []byte // of stdout
	closed bool
}

// NewLog makes a log that is written to a place, which it closes. With a nil place it
// is nil.
func NewLog(to io.WriteCloser, hide *redact.Redactor) *Log {
	if to == nil {
		return nil
	}
	return &Log{to: to, hide: hide}
}

// Write takes what the process says on stderr. It takes everything and never fails: what
// a process says must be read on.
func (d *Log) Write(p []byte) (int, error) {
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.add(&d.err, "", p)
	}
	return len(p), nil
}

// ofStdout is before each line of stdout.
const ofStdout = "stdout: "

// Stdout takes a line of stdout that is no message.
func (d *Log) Stdout(line []byte) {
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.add(&d.out, ofStdout, append(slices.Clone(line), '\n'))
	}
}

// add writes what there is of whole lines. Lines that end in the beginning of a secret
// wait for the next.
func (d *Log) add(held *[]byte, of string, p []byte) {
	*held = append(*held, p...)
	if bytes.IndexByte(p, '\n') < 0 && len(*held) <= maxLogLine {
		return
	}
	end := d.hide.Before(*held, len(*held) <= maxLogLine)
	if len(*held)-end > 2*maxLogLine {
		d.flush(held, of)
		return
	}
	d.write((*held)[:end], of)
	*held = append((*held)[:0], (*held)[end:]...)
}

func (d *Log) write(text []byte, of string) {
	if d.closed || len(text) == 0 {
		return
	}
	said := strings.ToValidUTF8(d.hide.Text(string(text)), "\uFFFD")
	if of != "" {
		said = of + strings.ReplaceAll(strings.TrimSuffix(said, "\n"), "\n", "\n"+of) + "\n"
	}
	_, _ = io.WriteString(d.to, said) // there is nobody to tell
}

// Note writes a line about the process, between those of it.
func (d *Log) Note(format string, args ...any) {
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
func (d *Log) flush(held *[]byte, of string) {
	if len(*held) == 0 {
		return
	}
	text := d.hide.End(string(*held))
	d.write([]byte(strings.TrimSuffix(text, "\n")+"\n"), of)
	*held = (*held)[:0]
}

// Close writes how the process ended, and closes the place.
func (d *Log) Close(how string) {
	if d == nil {
		return
	}
	d.Note("%s", how)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	_ = d.to.Close() // as with write
}
