package wire

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SSE is one server-sent event (WHATWG HTML, "Server-sent events").
type SSE struct {
	// ID is the cursor from which a client resumes; for "" AppendSSE writes no id line. It
	// belongs to this event only: the reader does not copy it to later events without an
	// id.
	ID string
	// Name is the event type; for "" AppendSSE writes no event line, which means
	// "message".
	Name string
	// Retry is how long the client should wait before it connects again, in whole
	// milliseconds. 0 writes no retry line.
	Retry time.Duration
	// Data is the payload without the line break at its end.
	Data []byte
	// HasData makes AppendSSE write a data line even if Data is empty. Browsers and the
	// TypeScript client drop an event without a data line, and its id with it. So an event that
	// has only a cursor must set HasData. The reader sets HasData whenever there was a data
	// line.
	HasData bool
}

// ErrEventTooLarge is the error of [SSEReader.Next] for an event or a line that is
// longer than the reader's limit.
var ErrEventTooLarge = errors.New("server-sent event is larger than the limit of its reader")

// AppendSSE appends the wire form of e, with the blank line that ends it, and returns the
// extended slice. Every field line has a colon and a blank ("data: "), because some
// clients take a bare field name for a broken stream. It splits data with line breaks into
// several data lines, which a reader joins with "\n". It leaves out CR, LF and NUL in ID
// and Name, which would begin another field.
func AppendSSE(dst []byte, e SSE) []byte {
	dst = slices.Grow(dst, len(e.ID)+len(e.Name)+len(e.Data)+64) // data is copied once, unless it has many lines
	if e.ID != "" {
		dst = appendField(dst, "id: ", e.ID)
	}
	if e.Name != "" {
		dst = appendField(dst, "event: ", e.Name)
	}
	if ms := e.Retry.Milliseconds(); ms > 0 {
		dst = strconv.AppendInt(append(dst, "retry: "...), ms, 10)
		dst = append(dst, '\n')
	}
	if len(e.Data) > 0 || e.HasData {
		dst = appendData(dst, e.Data)
	}
	return append(dst, '\n')
}

// AppendComment appends the line ": text", for a keep-alive. No blank line follows: some Python
// clients take a blank line for an event, if an earlier event had an id. AppendComment leaves
// out CR, LF and NUL in text.
func AppendComment(dst []byte, text string) []byte { return appendField(dst, ": ", text) }

func appendField(dst []byte, prefix, value string) []byte {
	dst = append(dst, prefix...)
	if strings.ContainsAny(value, "\r\n\x00") {
		value = strings.NewReplacer("\r", "", "\n", "", "\x00", "").Replace(value)
	}
	return append(append(dst, value...), '\n')
}

func appendData(dst, data []byte) []byte {
	for {
		line, rest, more := cutLine(data)
		dst = append(append(append(dst, "data: "...), line...), '\n')
		if !more {
			return dst
		}
		data = rest
	}
}

// cutLine cuts data at its first CR, LF or CRLF.
func cutLine(data []byte) (line, rest []byte, found bool) {
	i := lineEnd(data)
	if i < 0 {
		return data, nil, false
	}
	if data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n' {
		return data[:i], data[i+2:], true
	}
	return data[:i], data[i+1:], true
}

// lineEnd returns the index of the first CR or LF, or -1.
func lineEnd(data []byte) int {
	lf := bytes.IndexByte(data, '\n')
	if lf >= 0 {
		data = data[:lf]
	}
	if cr := bytes.IndexByte(data, '\r'); cr >= 0 {
		return cr
	}
	return lf
}

// SSEReader reads server-sent events as an EventSource does. Lines end with CR, LF or
// CRLF. It skips comments and a byte order mark at the start, and drops an event that
// the stream cuts off. Unlike an EventSource it also returns events that have only an
// id or a retry. It is not safe for concurrent use.
type SSEReader struct {
	src      io.Reader
	maxEvent int
	buf      []byte // read and not yet consumed
	err      error  // the end of the stream, or its first error; later reads return it again
	started  bool   // a byte order mark has been skipped, or there was none
	afterCR  bool   // the last line ended with CR, so an LF next belongs to it
}

// lineRoom is how many bytes longer a line may be than the data in it. A data line needs the
// room for the field name, colon, blank and byte order mark.
const lineRoom = 256

// After a line of more than keepLine bytes the reader frees its buffer.
const keepLine = 1 << 20

// NewSSEReader returns a reader of r. maxEvent bounds the data of one event in bytes, and
// maxEvent+256 an id, a name or a comment.
func NewSSEReader(r io.Reader, maxEvent int) *SSEReader {
	return &SSEReader{src: r, maxEvent: maxEvent}
}

// Next returns the next event with data, an id or a retry. It returns as soon as it has
// the line that ends the event, without waiting for more. Data belongs to the caller.
// Errors: io.EOF at the end of the stream, [ErrEventTooLarge] for an event over the
// limit, or the error of the underlying reader. After an error Next always returns the
// same one.
func (r *SSEReader) Next() (SSE, error) {
	var e SSE
	for {
		line, err := r.line()
		if err != nil {
			return SSE{}, err
		}
		if len(line) == 0 {
			if e.HasData || e.ID != "" || e.Retry > 0 {
				return e, nil
			}
			e = SSE{}
			continue
		}
		if err := r.field(&e, line); err != nil {
			return SSE{}, err
		}
	}
}

// field applies one line to the event it belongs to.
func (r *SSEReader) field(e *SSE, line []byte) error {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "data":
		if e.HasData {
			e.Data = append(e.Data, '\n')
		}
		if len(e.Data)+len(value) > r.maxEvent {
			return r.tooLarge()
		}
		e.Data = append(e.Data, value...)
		e.HasData = true
	case "event":
		e.Name = string(value)
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			e.ID = string(value)
		}
	case "retry":
		if retry, ok := parseRetry(value); ok {
			e.Retry = retry
		}
	}
	return nil
}

// parseRetry reads ASCII digits as milliseconds. It ignores a number that a Duration
// cannot hold, like anything that is not a number.
func parseRetry(value []byte) (time.Duration, bool) {
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	ms, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || ms > math.MaxInt64/int64(time.Millisecond) {
		return 0, false
	}
	return time.Duration(ms) * time.Millisecond, true
}

// line returns the next line without its end. The line is valid until the next call.
func (r *SSEReader) line() ([]byte, error) {
	for searched := 0; ; {
		if r.afterCR && len(r.buf) > 0 {
			if r.afterCR = false; r.buf[0] == '\n' {
				r.buf = r.buf[1:]
			}
		}
		end := lineEnd(r.buf[searched:])
		if end += searched; end < searched {
			end = len(r.buf)
		}
		if end > r.maxEvent+lineRoom {
			return nil, r.tooLarge()
		}
		if end < len(r.buf) {
			return r.cut(end), nil
		}
		searched = end
		if err := r.fill(); err != nil {
			return nil, err
		}
	}
}

// cut takes the line that ends at buf[end] off the buffer.
func (r *SSEReader) cut(end int) []byte {
	line := r.buf[:end]
	r.afterCR = r.buf[end] == '\r'
	if r.buf = r.buf[end+1:]; len(r.buf) == 0 && end > keepLine {
		r.buf = nil
	}
	if !r.started {
		r.started = true
		line = bytes.TrimPrefix(line, []byte("\uFEFF"))
	}
	return line
}

// tooLarge ends the stream, because the rest of the event can no longer be read whole.
func (r *SSEReader) tooLarge() error {
	r.buf, r.err = nil, ErrEventTooLarge
	return r.err
}

// fill reads once and appends the bytes to buf. The next fill returns an error that comes with
// bytes.
func (r *SSEReader) fill() error {
	if r.err != nil {
		return r.err
	}
	const least = 1 << 10
	if cap(r.buf)-len(r.buf) < least {
		// Doubling the buffer copies the bytes of a long line only a few times.
		r.buf = slices.Grow(r.buf, max(4*least, len(r.buf)))
	}
	n, err := r.src.Read(r.buf[len(r.buf):cap(r.buf)])
	r.buf = r.buf[:len(r.buf)+n]
	r.err = err
	if n > 0 {
		return nil
	}
	return err
}
