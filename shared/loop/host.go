package loop

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"time"
)

// Conn is the end of a connection at who runs the function. It is used by one
// goroutine.
type Conn struct {
	conn net.Conn
	r    *bufio.Reader
	out  []byte
	said []byte
}

// readAhead is the most of an answer that is taken as a whole.
const readAhead = 36 << 10

// NewConn takes over the connection of an upgraded request, on which nothing has
// been read ahead, and answers the upgrade.
func NewConn(conn net.Conn) (*Conn, error) {
	c := &Conn{conn: conn, r: bufio.NewReaderSize(conn, readAhead)}
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+Protocol+"\r\n\r\n"); err != nil {
		return nil, fmt.Errorf("answer the upgrade: %w", err)
	}
	return c, nil
}

// Close cuts the process off.
func (c *Conn) Close() error { return c.conn.Close() }

// Hand gives the process an invocation. An error does not say that it has got none.
func (c *Conn) Hand(inv Invocation) error {
	b := appendInvoke(c.out[:0], inv)
	if len(inv.Payload) <= piece {
		b = append(b, inv.Payload...)
		c.out = b[:0]
		_, err := c.conn.Write(b)
		return err
	}
	c.out = b[:0]
	two := net.Buffers{b, inv.Payload}
	_, err := two.WriteTo(c.conn)
	return err
}

// Await returns when an answer has begun, or the process is gone, or after
// [Conn.Interrupt]; then it can be called again.
func (c *Conn) Await() error {
	_, err := c.r.Peek(frameHead)
	return err
}

// Interrupt ends an Await, now or to come, with os.ErrDeadlineExceeded, until Resume.
// It may be called by any goroutine.
func (c *Conn) Interrupt() { _ = c.conn.SetReadDeadline(time.Unix(1, 0)) }

// Resume ends what Interrupt began.
func (c *Conn) Resume() { _ = c.conn.SetReadDeadline(time.Time{}) }

// Answer is how the process answers. It is read to its end, or taken as a whole,
// before [Conn.Ready] and the next Hand.
type Answer struct {
	ContentType string
	Failed      *Report // in the place of an answer

	c    *Conn
	left int // of the piece that is read
	end  bool
	last *Report
}

// Answer waits until an answer begins.
func (c *Conn) Answer() (*Answer, error) {
	var h [frameHead]byte
	kind, n, err := readHead(c.r, &h)
	if err != nil {
		return nil, err
	}
	if kind != head && kind != failed || n > maxText {
		return nil, fmt.Errorf("%w: kind %q, %d bytes", errFrame, kind, n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(c.r, text); err != nil {
		return nil, err
	}
	if kind == failed {
		return &Answer{Failed: parseReport(text), c: c, end: true}, nil
	}
	return &Answer{ContentType: string(text), c: c}, nil
}

// Whole returns all of an answer of which nothing has been read yet, if it is there
// already, has come to its end without an error, and the process is ready for more.
func (a *Answer) Whole() (body []byte, ok bool) {
	there, _ := a.c.r.Peek(a.c.r.Buffered()) // cannot fail
	body = []byte{}
	for at := 0; len(there)-at >= frameHead; {
		kind, n := there[at], lengthOf(there[at:])
		if at += frameHead; kind == end && n == 0 {
			last := there[at:]
			if len(last) < frameHead || last[0] != ready || len(last) < frameHead+lengthOf(last) {
				break
			}
			a.c.said = bytes.Clone(last[frameHead : frameHead+lengthOf(last)])
			_, _ = a.c.r.Discard(at + frameHead + len(a.c.said)) // it was buffered
			a.end = true
			return body, true
		}
		if kind != data || len(there)-at < n {
			break
		}
		body = append(body, there[at:at+n]...)
		at += n
	}
	return nil, false
}

// Ready waits until the process can have another invocation, behind an answer that was
// read to its end, or failed, and was not taken as a whole.
func (c *Conn) Ready() error {
	var h [frameHead]byte
	kind, n, err := readHead(c.r, &h)
	if err == nil && (kind != ready || n > maxText) {
		err = fmt.Errorf("%w: kind %q, %d bytes", errFrame, kind, n)
	}
	if err != nil {
		return err
	}
	c.said = make([]byte, n)
	_, err = io.ReadFull(c.r, c.said)
	return err
}

// Said is what the process has said of its last invocation (see [Say]), once it is
// ready or its answer was taken as a whole. It is the caller's.
func (c *Conn) Said() []byte {
	said := c.said
	c.said = nil
	return said
}

// Read returns what the process has sent; io.EOF behind an answer that has come to
// its end, whole or not (see [Answer.Broken]); any other error if the process is gone.
func (a *Answer) Read(p []byte) (int, error) {
	for a.left == 0 {
		if a.end {
			return 0, io.EOF
		}
		if err := a.frame(); err != nil {
			return 0, err
		}
	}
	n, err := a.c.r.Read(p[:min(len(p), a.left)])
	a.left -= n
	return n, unexpected(err)
}

// frame begins the next frame.
func (a *Answer) frame() error {
	var h [frameHead]byte
	kind, n, err := readHead(a.c.r, &h)
	switch {
	case err != nil:
		return unexpected(err)
	case kind == data:
		a.left = n
		return nil
	case kind != end || n > maxText:
		return fmt.Errorf("%w: kind %q, %d bytes", errFrame, kind, n)
	}
	if a.end = true; n > 0 {
		text := make([]byte, n)
		if _, err := io.ReadFull(a.c.r, text); err != nil {
			return unexpected(err)
		}
		a.last = parseReport(text)
	}
	return nil
}

// unexpected keeps the end of the connection apart from that of an answer.
func unexpected(err error) error {
	if err == io.EOF { //nolint:errorlint // what bufio returns
		return io.ErrUnexpectedEOF
	}
	return err
}

// Broken is why an answer that was read to its end is not whole; nil if it is.
func (a *Answer) Broken() *Report { return a.last }
