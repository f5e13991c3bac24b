package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
)

// edge is how many bytes [TooLong] keeps of the beginning and of the end of a line.
const edge = 256

// LineReader cuts the output of a process into lines.
type LineReader struct {
	r      *bufio.Reader
	max    int
	budget *guard.Budget
	held   int    // bytes of the last line, which the budget counts
	rest   []byte // the text after the last line end
	cut    bool   // the text after the last line end was over the limit, so rest does not have it
}

// NewLineReader returns a reader for lines of up to limit bytes, including the line end. The bytes
// of a line count in budget, which may be nil, until the next call of Next.
func NewLineReader(r io.Reader, limit int, budget *guard.Budget) *LineReader {
	return &LineReader{r: bufio.NewReaderSize(r, 64<<10), max: limit, budget: budget}
}

// Rest returns the text after the last line end. The result ok is false if that text was over the
// limit.
func (l *LineReader) Rest() (rest []byte, ok bool) { return l.rest, !l.cut }

// Close gives the bytes of the last line back to the budget.
func (l *LineReader) Close() { l.hold(0) }

func (l *LineReader) hold(bytes int) {
	l.budget.Hold(bytes - l.held)
	l.held = bytes
}

// Next returns a line without its LF or CRLF; the caller owns it. If a line is over the limit, or
// the budget has no room for it, the error is a *TooLong, and the next call returns the next line.
// Other errors are those of the underlying reader; Rest then has the text after the last line end.
func (l *LineReader) Next() ([]byte, error) {
	var parts [][]byte // joined at the end, because a growing slice would be copied several times
	var long *TooLong
	size := 0
	l.hold(0)
	room := l.budget.Room()
	for {
		part, err := l.r.ReadSlice('\n')
		switch {
		case long != nil:
			long.add(part)
		case size+len(part) > l.max, size > 0 && !room:
			long = &TooLong{limit: l.max, Full: size+len(part) <= l.max}
			for _, p := range append(parts, part) {
				long.add(p)
			}
			parts, size = nil, 0
		default:
			parts, size = append(parts, bytes.Clone(part)), size+len(part)
		}
		l.hold(size)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			room = long != nil || l.budget.Room()
			continue
		case long != nil:
			l.cut = err != nil
			return nil, long
		case err != nil:
			l.rest = slices.Concat(parts...)
			return nil, err
		default:
			line := parts[0]
			if len(parts) > 1 {
				line = slices.Concat(parts...)
			}
			line = bytes.TrimSuffix(line, []byte("\n"))
			return bytes.TrimSuffix(line, []byte("\r")), nil
		}
	}
}

// TooLong is the error for a line that is over the limit, or for which there was no memory.
type TooLong struct {
	Bytes      int  // length of the line
	Full       bool // the line is within the limit, but the budget had no room for it
	limit      int
	head, tail []byte
}

// Error says whether the line was over the limit, or there was no memory for it.
func (e *TooLong) Error() string {
	if e.Full {
		return fmt.Sprintf("there was no memory for a line of %d bytes", e.Bytes)
	}
	return fmt.Sprintf("line of %d bytes is over the limit of %d", e.Bytes, e.limit)
}

func (e *TooLong) add(part []byte) {
	e.Bytes += len(part)
	if room := edge - len(e.head); room > 0 {
		e.head = append(e.head, part[:min(room, len(part))]...)
	}
	e.tail = append(e.tail, part[max(0, len(part)-edge):]...)
	e.tail = slices.Clone(e.tail[max(0, len(e.tail)-edge):])
}

// Answers returns the id of the request that the line answers. Answers finds only an id that is a
// number, or digits in a string. The id must be the second member or the last one: an id elsewhere
// may belong to a nested value.
func (e *TooLong) Answers() (id []byte, ok bool) {
	head, tail := bytes.TrimPrefix(stripSpace(e.head), []byte("\uFEFF")), stripSpace(e.tail)
	if rest, found := bytes.CutPrefix(head, []byte(`{"jsonrpc":"2.0","id":`)); found {
		id, _, ok = bytes.Cut(rest, []byte(","))
	} else if rest, found := bytes.CutSuffix(tail, []byte("}")); found {
		const key = `,"id":`
		if i := bytes.LastIndex(rest, []byte(key)); i >= 0 {
			id, ok = rest[i+len(key):], true
		}
	}
	return id, ok && len(id) > 0 && len(bytes.Trim(id, `"0123456789.eE+`)) == 0
}

func stripSpace(b []byte) []byte {
	return bytes.Map(func(r rune) rune {
		if r == ' ' || r == '\t' || r == '\r' || r == '\n' {
			return -1
		}
		return r
	}, b)
}

// Queue holds lines for the goroutine that writes them. The size of a Queue in bytes is limited.
type Queue struct {
	mu     sync.Mutex
	filled sync.Cond
	lines  [][]byte
	bytes  int // size of all lines, and of the line that is being written
	max    int
	closed bool

	pushed, written int64 // bytes pushed and written so far, with line ends

	first   []byte // bytes to write before the lines of the queue
	writing bool   // WriteLines is in a call of Write
	paused  bool
}

// NewQueue makes a queue that holds up to limit bytes.
func NewQueue(limit int) *Queue {
	q := &Queue{max: limit}
	q.filled.L = &q.mu
	return q
}

// Push adds a line, which the queue then owns. Push returns false if there is no room for the
// line. A closed queue drops every line and returns true.
func (q *Queue) Push(line []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return true
	}
	if q.bytes+len(line) > q.max {
		return false
	}
	q.lines = append(q.lines, line)
	q.bytes += len(line)
	q.pushed += int64(len(line)) + 1
	q.filled.Signal()
	return true
}

// Pushed returns how many bytes were pushed so far, with line ends.
func (q *Queue) Pushed() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pushed
}

// Written returns how many of the pushed bytes were written so far, with line ends.
func (q *Queue) Written() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.written
}

// Prepend, which must be called before WriteLines, makes WriteLines write raw before all lines.
func (q *Queue) Prepend(raw []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.first = raw
	q.pushed += int64(len(raw))
}

// WriteLines writes each line and a line end to w. WriteLines returns nil when the queue is closed
// or paused. If w fails, WriteLines closes the queue and returns the error.
func (q *Queue) WriteLines(w io.Writer) error {
	for {
		raw, line, ok := q.pop()
		if !ok {
			return nil
		}
		n, err := w.Write(raw)
		q.mu.Lock()
		q.writing = false
		q.bytes -= line
		q.written += int64(n)
		if q.paused {
			q.first, err = raw[n:], nil // Pause has interrupted the write; the rest stays in the queue
		}
		q.filled.Broadcast()
		q.mu.Unlock()
		if err != nil {
			q.Close()
			return err
		}
	}
}

// pop waits for something to write and returns it. The result line is how many of these bytes
// count against the limit; ok is false if the queue is closed or paused.
func (q *Queue) pop() (raw []byte, line int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.lines) == 0 && len(q.first) == 0 && !q.closed && !q.paused {
		q.filled.Wait()
	}
	if q.closed || q.paused {
		return nil, 0, false
	}
	q.writing = true
	if raw, q.first = q.first, nil; len(raw) > 0 {
		return raw, 0, true
	}
	raw = q.lines[0]
	q.lines[0] = nil
	q.lines = q.lines[1:]
	return append(raw, '\n'), len(raw), true
}

// Pause makes WriteLines return, and keeps what is not written. Pause calls interrupt, which must
// make a blocked Write return. When Pause returns, nothing is being written.
func (q *Queue) Pause(interrupt func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.paused = true
	q.filled.Broadcast()
	for q.writing {
		interrupt()
		q.filled.Wait()
	}
}

// Take returns what a paused queue has not written: the rest of a line that was partly written,
// and the lines after it.
func (q *Queue) Take() (rest []byte, lines [][]byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	rest, lines = q.first, q.lines
	q.first, q.lines, q.bytes = nil, nil, 0
	return rest, lines
}

// Close drops the lines that are not written, and makes WriteLines return.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.lines, q.first, q.bytes = true, nil, nil, 0
	q.filled.Broadcast()
}
