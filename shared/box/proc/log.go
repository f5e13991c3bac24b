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

// maxLogLine is the number of bytes after which a Log writes a line in parts.
const maxLogLine = 16 << 10

// Log writes the stderr of one process, and lines of its stdout that are no messages, to
// a writer. It hides secrets, so it writes whole lines, or parts of very long ones. A nil
// Log writes nothing. All methods are safe for concurrent use.
type Log struct {
	to   io.WriteCloser
	hide *redact.Redactor

	mu     sync.Mutex
	err    []byte // output of stderr that is not written yet
	out    []byte // the same of stdout
	closed bool
}

// NewLog makes a Log that writes to the writer to, and closes it at the end. If to is nil,
// the Log is nil.
func NewLog(to io.WriteCloser, hide *redact.Redactor) *Log {
	if to == nil {
		return nil
	}
	return &Log{to: to, hide: hide}
}

// Write takes stderr of the process. It takes all of p and never fails, because the
// process must not block on stderr.
func (d *Log) Write(p []byte) (int, error) {
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.add(&d.err, "", p)
	}
	return len(p), nil
}

// ofStdout begins each line of stdout.
const ofStdout = "stdout: "

// Stdout takes a line of stdout that is no message.
func (d *Log) Stdout(line []byte) {
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.add(&d.out, ofStdout, append(slices.Clone(line), '\n'))
	}
}

// add takes output of one stream. held is what was not written of it so far, and of begins each
// of its lines. add writes all whole lines, but holds back those that may end in the beginning
// of a secret, until more output comes.
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
	_, _ = io.WriteString(d.to, said) // nobody could be told of an error
}

// Note writes a line about the process itself, with the time. It first writes the output
// that was held back.
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

// flush writes the held bytes, and a line end if they have none.
func (d *Log) flush(held *[]byte, of string) {
	if len(*held) == 0 {
		return
	}
	text := d.hide.End(string(*held))
	d.write([]byte(strings.TrimSuffix(text, "\n")+"\n"), of)
	*held = (*held)[:0]
}

// Close writes how as a last note, and closes the writer.
func (d *Log) Close(how string) {
	if d == nil {
		return
	}
	d.Note("%s", how)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	_ = d.to.Close() // nobody could be told of an error
}

// LogName returns the name that the files of a process have instead of its own. The name of
// a process is often the id of a session, and programs that cannot read the folder of the
// logs can still watch the names in it.
func LogName(process string) string {
	sum := sha256.Sum256([]byte(process))
	return hex.EncodeToString(sum[:16])
}
