package box

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
)

// Limits of what is held in memory for one process.
const (
	maxLine  = 16 << 20 // of a line the server says, with its end
	maxQueue = 32 << 20 // of what waits until the server reads it
	edge     = 256      // of both ends of a line that is left out
)

// lineReader cuts the output of a server into lines.
type lineReader struct {
	r   *bufio.Reader
	max int
}

// newLineReader reads lines of up to limit bytes, ends included.
func newLineReader(r io.Reader, limit int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 64<<10), max: limit}
}

// next returns a line without its LF or CRLF; it belongs to the caller. A last
// line without an end counts. The error is a *tooLong for a line that was left
// out, after which the next one can be read, else the error of the reader.
func (l *lineReader) next() ([]byte, error) {
	var line []byte
	var long *tooLong
	for {
		part, err := l.r.ReadSlice('\n')
		switch {
		case long != nil:
			long.add(part)
		case len(line)+len(part) > l.max:
			long = &tooLong{}
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

// tooLong is a line that was left out, with as much of it as may tell what it was.
type tooLong struct {
	bytes      int
	head, tail []byte
}

func (e *tooLong) Error() string {
	return fmt.Sprintf("line of %d bytes is over the limit of %d", e.bytes, maxLine)
}

func (e *tooLong) add(part []byte) {
	e.bytes += len(part)
	if room := edge - len(e.head); room > 0 {
		e.head = append(e.head, part[:min(room, len(part))]...)
	}
	e.tail = append(e.tail, part[max(0, len(part)-edge):]...)
	e.tail = slices.Clone(e.tail[max(0, len(e.tail)-edge):])
}

// answers finds the number of the request that the line is the response to, if it
// says so where servers do: as the second member or as the last. Both places are
// outside of anything nested, so what stands there is the id of the message.
func (e *tooLong) answers() (id []byte, ok bool) {
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

// unpack takes a batch apart. Its messages are told one by one, for clients of most
// versions know no batches, and one that is no message does not spoil the others.
func unpack(line []byte) []json.RawMessage {
	if line[0] == '[' {
		var batch []json.RawMessage
		if json.Unmarshal(line, &batch) == nil {
			return batch
		}
	}
	return []json.RawMessage{line}
}

// lineQueue holds lines for the goroutine that writes them. It is bounded in bytes,
// so that a server that does not read costs its own session and nothing else.
type lineQueue struct {
	mu     sync.Mutex
	filled sync.Cond
	lines  [][]byte
	bytes  int // of lines, and of the one that is being written
	max    int
	closed bool
}

func newLineQueue(limit int) *lineQueue {
	q := &lineQueue{max: limit}
	q.filled.L = &q.mu
	return q
}

// push adds a line, which the queue then owns. It is false when the line does not
// fit. A closed queue takes everything and forgets it.
func (q *lineQueue) push(line []byte) bool {
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

// writeTo writes the lines, each with its end, until the queue is closed or w
// fails; then the queue is closed.
func (q *lineQueue) writeTo(w io.Writer) error {
	defer q.close()
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

func (q *lineQueue) pop() ([]byte, bool) {
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

func (q *lineQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.lines, q.bytes = true, nil, 0
	q.filled.Broadcast()
}
