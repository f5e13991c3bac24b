package proc

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/redact"
)

// maxLogLine is how many bytes of a line a Log collects before it writes them as a part of the
// line.
const maxLogLine = 16 << 10

// Log writes the stderr of one process, and lines of its stdout that are no messages, to a writer.
// A Log removes secrets; for that it writes complete lines, or parts of very long ones. A nil Log
// writes nothing. All methods are safe for concurrent use.
type Log struct {
	to   io.WriteCloser
	hide *redact.Redactor

	mu     sync.Mutex
	err    []byte // output of stderr that is not written yet
	out    []byte // output of stdout that is not written yet
	closed bool
}

// NewLog returns a Log that writes to w, and closes w in Close. If w is nil, the Log is nil.
func NewLog(w io.WriteCloser, hide *redact.Redactor) *Log {
	if w == nil {
		return nil
	}
	return &Log{to: w, hide: hide}
}

// Write adds output of the process's stderr. Write takes all of p and never fails, because the
// process must not block on stderr.
func (d *Log) Write(p []byte) (int, error) {
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.add(&d.err, "", p)
	}
	return len(p), nil
}

// ofStdout is the prefix of each line of stdout.
const ofStdout = "stdout: "

// Stdout adds a line of stdout that is no message.
func (d *Log) Stdout(line []byte) {
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.add(&d.out, ofStdout, append(slices.Clone(line), '\n'))
	}
}

// add adds p to held, the output of one stream that is not written yet, and writes all complete
// lines, except those that may end with the beginning of a secret. Each line begins with prefix.
func (d *Log) add(held *[]byte, prefix string, p []byte) {
	*held = append(*held, p...)
	if bytes.IndexByte(p, '\n') < 0 && len(*held) <= maxLogLine {
		return
	}
	end := d.hide.Before(*held, len(*held) <= maxLogLine)
	if len(*held)-end > 2*maxLogLine {
		d.flush(held, prefix)
		return
	}
	d.write((*held)[:end], prefix)
	*held = append((*held)[:0], (*held)[end:]...)
}

func (d *Log) write(text []byte, prefix string) {
	if d.closed || len(text) == 0 {
		return
	}
	said := strings.ToValidUTF8(d.hide.Text(string(text)), "\uFFFD")
	if prefix != "" {
		said = prefix + strings.ReplaceAll(strings.TrimSuffix(said, "\n"), "\n", "\n"+prefix) + "\n"
	}
	_, _ = io.WriteString(d.to, said) // an error could be reported to nobody
}

// Note writes a line about the process itself, with the time.
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

// flush writes all of held, with a line end.
func (d *Log) flush(held *[]byte, prefix string) {
	if len(*held) == 0 {
		return
	}
	text := d.hide.End(string(*held))
	d.write([]byte(strings.TrimSuffix(text, "\n")+"\n"), prefix)
	*held = (*held)[:0]
}

// Close writes a last note, a text about how the process ended, and closes the writer.
func (d *Log) Close(ending string) {
	if d == nil {
		return
	}
	d.Note("%s", ending)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	_ = d.to.Close() // an error could be reported to nobody
}

// LogName returns a name for the log files of a process. It does not reveal the name of the
// process, which is often the id of a session: programs that cannot read the log files may be able
// to list their names.
func LogName(process string) string {
	sum := sha256.Sum256([]byte(process))
	return hex.EncodeToString(sum[:16])
}
