package loop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
)

// Handler executes one invocation. It is called by as many goroutines as there are
// connections. An answer that is an io.Closer is closed when it has been sent, or
// cannot be; one with a method ContentType() string says what it is; one with a
// method Ready() bool that says true is not waited for when it is read.
type Handler func(context.Context, Invocation) (io.Reader, error)

// Serve connects an instance n times to the socket of the Runtime API, and takes
// invocations until it is cut off there, a handler panics (which is reported first),
// or ctx ends. It does not return nil. logged is told of each failure of a handler,
// and may be nil.
func Serve(ctx context.Context, socket, instance string, n int, h Handler, logged func(Report)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if logged == nil {
		logged = func(Report) {}
	}
	for range max(1, n) {
		c, err := dial(ctx, socket, instance)
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = c.conn.Close() }()
			cancel(c.serve(ctx, h, logged))
		}()
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// link is the end of a connection in the process.
type link struct {
	conn net.Conn
	r    *bufio.Reader
	in   []byte // the last invocation; kept if it is small
	out  []byte
}

func dial(ctx context.Context, socket, instance string) (*link, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("connect to the runtime api: %w", err)
	}
	c := &link{conn: conn, r: bufio.NewReaderSize(conn, 4<<10)}
	_, err = io.WriteString(conn, "GET /"+instance+"/"+Path+" HTTP/1.1\r\nHost: local\r\nConnection: Upgrade\r\nUpgrade: "+Protocol+"\r\n\r\n")
	var res *http.Response
	if err == nil {
		res, err = http.ReadResponse(c.r, nil) //nolint:bodyclose // an upgrade has none
	}
	if err == nil && res.StatusCode != http.StatusSwitchingProtocols {
		err = fmt.Errorf("it answers %s", res.Status)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("begin the loop: %w", err)
	}
	return c, nil
}

func (c *link) serve(ctx context.Context, h Handler, logged func(Report)) error {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.Close() })
	defer stop()
	for {
		inv, err := c.next()
		if err != nil {
			return fmt.Errorf("wait for an invocation: %w", err)
		}
		if err := c.handle(ctx, inv, h, logged); err != nil {
			return err
		}
	}
}

// keep is the largest invocation whose memory is used again.
const keep = 64 << 10

func (c *link) next() (Invocation, error) {
	var h [frameHead]byte
	kind, n, err := readHead(c.r, &h)
	if err != nil {
		return Invocation{}, err
	}
	if kind != invoke {
		return Invocation{}, fmt.Errorf("%w: kind %q", errFrame, kind)
	}
	if cap(c.in) < n || cap(c.in) > keep {
		c.in = make([]byte, max(n, 4<<10))
	}
	if _, err := io.ReadFull(c.r, c.in[:n]); err != nil {
		return Invocation{}, err
	}
	return parseInvoke(c.in[:n])
}

// handle is one invocation. Its error ends the process: the connection broke, or the
// handler panicked.
func (c *link) handle(ctx context.Context, inv Invocation, h Handler, logged func(Report)) error {
	ctx, cancel := context.WithDeadline(ctx, inv.Deadline)
	defer cancel()
	said := &sayings{}
	ctx = context.WithValue(ctx, saying{}, said)
	answer, report, panicked := execute(ctx, inv, h)
	if report != nil {
		logged(*report)
		b := appendReport(c.out[:0], failed, *report)
		if !panicked {
			b = appendReady(b, said)
		}
		if err := c.write(b); err != nil {
			return err
		}
		if panicked {
			return errors.New("the handler panicked; the process must end")
		}
		return nil
	}
	return c.answer(answer, said)
}

type saying struct{}

// sayings is what an invocation says until it ends.
type sayings struct {
	mu    sync.Mutex
	text  []byte
	ended bool
}

// Say has text go to who runs the function with the end of the invocation whose context
// this is, which costs nobody a write or a wake-up of its own. It reports whether it
// will: not if the invocation has ended, or is none of a loop, or has said too much. It
// is lost if the process ends first.
func Say(ctx context.Context, text []byte) bool {
	s, ok := ctx.Value(saying{}).(*sayings)
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || len(s.text)+len(text) > maxText {
		return false
	}
	s.text = append(s.text, text...)
	return true
}

// appendReady ends an invocation.
func appendReady(b []byte, s *sayings) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	b, at := begin(b, ready)
	return finish(append(b, s.text...), at)
}

func execute(ctx context.Context, inv Invocation, h Handler) (answer io.Reader, report *Report, panicked bool) {
	defer func() {
		if fault := recover(); fault != nil {
			stack := strings.Split(strings.TrimSpace(string(debug.Stack())), "\n")
			report, panicked = &Report{Type: typeName(fault), Message: fmt.Sprint(fault), Stack: stack}, true
		}
	}()
	answer, err := h(ctx, inv)
	if err != nil {
		return nil, reportOf(err), false
	}
	return answer, nil, false
}

func reportOf(err error) *Report { return &Report{Type: typeName(err), Message: err.Error()} }

// typeName is what Lambda's runtime for Go calls an error's type.
func typeName(v any) string {
	t := reflect.TypeOf(v)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Name()
}

// answer sends what is read, as soon as it is read, and closes it; all of it in one
// write if there is nothing to wait for.
func (c *link) answer(from io.Reader, said *sayings) error {
	kind, there := "application/octet-stream", func() bool { return false }
	if t, ok := from.(interface{ ContentType() string }); ok {
		kind = t.ContentType()
	}
	if r, ok := from.(interface{ Ready() bool }); ok {
		there = r.Ready
	}
	b, at := begin(c.out[:0], head)
	b = finish(append(b, kind...), at)
	for {
		b, at = begin(grow(b, frameHead+piece), data)
		n, err := from.Read(b[len(b) : len(b)+piece])
		if b = b[:len(b)+n]; n > 0 {
			b = finish(b, at)
		} else {
			b = b[:at]
		}
		switch {
		case errors.Is(err, io.EOF):
			b, at = begin(b, end)
			return c.done(from, finish(b, at), there(), said)
		case err != nil:
			return c.done(from, appendReport(b, end, *reportOf(err)), false, said)
		case len(b) > piece || len(b) > 0 && !there():
			if err := c.write(b); err != nil {
				if closer, ok := from.(io.Closer); ok {
					_ = closer.Close() // nobody reads on
				}
				return err
			}
			b = b[:0]
		}
	}
}

// done sends the end of an answer, and closes it: before that if it takes no time.
func (c *link) done(from io.Reader, last []byte, quick bool, said *sayings) error {
	closer, ok := from.(io.Closer)
	if ok && !quick {
		if err := c.write(last); err != nil {
			_ = closer.Close() // as below
			return err
		}
		last = c.out[:0]
	}
	if ok {
		_ = closer.Close() // all that it had to give was read
	}
	return c.write(appendReady(last, said))
}

// grow makes room for n bytes more.
func grow(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b
	}
	return append(make([]byte, 0, len(b)+n+4<<10), b...)
}

func (c *link) write(b []byte) error {
	if c.out = b[:0]; cap(b) > 3*piece {
		c.out = nil
	}
	if _, err := c.conn.Write(b); err != nil {
		return fmt.Errorf("send an answer: %w", err)
	}
	return nil
}
