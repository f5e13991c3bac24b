package box

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"
)

// maxDiaryLine is how many bytes of a line are written at once.
const maxDiaryLine = 16 << 10

// diary writes down what one process says on its stderr, for people who look later.
// It hides secrets, so it writes no line before it is whole. A nil diary writes
// nothing. One goroutine at a time may use it.
type diary struct {
	to   io.WriteCloser
	hide *redactor
	line []byte // not written yet
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

// Write takes everything and never fails: what a process says must be read on.
func (d *diary) Write(p []byte) (int, error) {
	if d == nil {
		return len(p), nil
	}
	d.line = append(d.line, p...)
	if end := bytes.LastIndexByte(d.line, '\n') + 1; end > 0 {
		d.write(d.line[:end])
		d.line = append(d.line[:0], d.line[end:]...)
	}
	if len(d.line) > maxDiaryLine {
		end := d.hide.before(d.line)
		d.write(d.line[:end])
		d.line = append(d.line[:0], d.line[end:]...)
	}
	return len(p), nil
}

func (d *diary) write(text []byte) {
	// There is nobody to tell.
	_, _ = io.WriteString(d.to, strings.ToValidUTF8(d.hide.lines(string(text)), "\uFFFD"))
}

// note writes a line about the process, between those of it.
func (d *diary) note(format string, args ...any) {
	if d == nil {
		return
	}
	d.flush()
	d.write(fmt.Appendf(nil, "--- %s %s\n", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), fmt.Sprintf(format, args...)))
}

// flush writes a last line that has no end.
func (d *diary) flush() {
	if len(d.line) > 0 {
		d.write([]byte(d.hide.end(string(d.line)) + "\n"))
		d.line = d.line[:0]
	}
}

// close writes how it ended.
func (d *diary) close(how string) {
	if d == nil {
		return
	}
	d.note("%s", how)
	_ = d.to.Close() // as with write
}
