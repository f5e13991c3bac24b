package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
)

// edge is how many bytes are kept of both ends of a line that is left out.
const edge = 256

// LineReader cuts the output of a process into lines.
type LineReader struct {
	r   *bufio.Reader
	max int
}

// NewLineReader reads lines of up to limit bytes each, with their ends.
func NewLineReader(r io.Reader, limit int) *LineReader {
	return &LineReader{r: bufio.NewReaderSize(r, 64<<10), max: limit}
}

// Next returns a line without its LF or CRLF; it belongs to the caller. A last
// line without an end counts. The error is a *TooLong for a line that was left
// out, after which the next one can be read, else the error of the reader.
func (l *LineReader) Next() ([]byte, error) {
	var line []byte
	var long *TooLong
	for {
		part, err := l.r.ReadSlice('\n')
		switch {
		case long != nil:
			long.add(part)
		case len(line)+len(part) > l.max:
			long = &TooLong{limit: l.max}
			long.add(line)
			long.add(part)
			line = nil
		default:
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case long != nil:
			return nil, long
		case err != nil && len(line) == 0:
			return nil, err
		default:
			// An error comes again, with the next call.
			line = bytes.TrimSuffix(line, []byte("\n"))
			return bytes.TrimSuffix(line, []byte("\r")), nil
		}
	}
}

// TooLong is the error for a line over the limit. It keeps enough of the line to tell which
// request the line answered.
type TooLong struct {
	Bytes      int // of the line
	limit      int
	head, tail []byte
}

// Error says how long the line was.
func (e *TooLong) Error() string {
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

// Answers finds the number of the request that the line is the response to, if it
// says so where servers do: as the second member or as the last. Both places are
// outside of anything nested, so what stands there is the id of the message.
func (e *TooLong) Answers() (id []byte, ok bool) {
	head, tail := stripSpace(e.head), stripSpace(e.tail)
	if rest, found := bytes.CutPrefix(head, []byte(`{"jsonrpc":"2.0","id":`)); found {
		id, _, ok = bytes.Cut(rest, []byte(","))
	} else if rest, found := bytes.CutSuffix(tail, []byte("}")); found {
		const key = `,"id":`
		if i := bytes.LastIndex(rest, []byte(key)); i >= 0 {
			id, ok = rest[i+len(key):], true
		}
	}
	_, err := strconv.ParseInt(string(id), 10, 64)
	return id, ok && err == nil
}

func stripSpace(b []byte) []byte {
	return bytes.Map(func(r rune) rune {
		if r == ' ' || r == '\t' || r == '\r' || r == '\n' {
			return -1
		}
		return r
	}, b)
}

// Queue holds lines for the goroutine that writes them. It is bounded in bytes,
// so that a server that does not read costs its own session and nothing else.
type Queue struct {
	mu     sync.Mutex
	filled sync.Cond
	lines  [][]byte
	bytes  int // of lines, and of the one that is being written
	max    int
	closed bool
}

// NewQueue makes a queue that holds up to limit bytes.
func NewQueue(limit int) *Queue {
	q := &Queue{max: limit}
	q.filled.L = &q.mu
	return q
}

// Push adds a line, which the queue then owns. It is false when the line does not
// fit. A closed queue takes everything and forgets it.
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
	q.filled.Signal()
	return true
}

// WriteLines writes the lines, each with its end, until the queue is closed or w
// fails; then the queue is closed.
func (q *Queue) WriteLines(w io.Writer) error {
	defer q.Close()
	for {
		line, ok := q.pop()
		if !ok {
			return nil
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
		q.mu.Lock()
		q.bytes -= len(line)
		q.mu.Unlock()
	}
}

func (q *Queue) pop() ([]byte, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.lines) == 0 && !q.closed {
		q.filled.Wait()
	}
	if q.closed {
		return nil, false
	}
	line := q.lines[0]
	q.lines[0] = nil
	q.lines = q.lines[1:]
	return line, true
}

// Close forgets what was not written, and ends WriteLines.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.lines, q.bytes = true, nil, 0
	q.filled.Broadcast()
}
