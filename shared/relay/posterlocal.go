package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// localConnections asks an @connections API on a unix socket, in HTTP written by
// hand: AWS's client takes a quarter of the time of a function that posts once.
type localConnections struct {
	socket string
	path   string // of the stage

	mu   sync.Mutex
	idle []*localConn
}

type localConn struct {
	net.Conn
	r   *bufio.Reader
	out []byte
}

const (
	maxIdle = 16
	// postWithin bounds a request of a caller without a deadline.
	postWithin = 30 * time.Second
)

func newLocalConnections(endpoint, socket string) *localConnections {
	l := &localConnections{socket: socket}
	if u, err := url.Parse(endpoint); err == nil { // its host is of no interest
		l.path = u.EscapedPath()
	}
	return l
}

// patience is how long a gateway is asked again that has no room for a message: the
// pieces of a long one are posted faster than they are read at the other end.
const patience = 500 * time.Millisecond

// do makes a request and returns the status of the answer, the last one if it is made
// again because the gateway is busy.
func (l *localConnections) do(ctx context.Context, method, conn string, data []byte) (int, error) {
	for begun, pause := time.Now(), time.Millisecond; ; pause *= 2 {
		status, err := l.once(ctx, method, conn, data)
		busy := status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
		if err != nil || !busy || time.Since(begun)+pause > patience {
			return status, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return status, nil
		}
	}
}

// once makes a request, and again if a connection from before has been closed
// meanwhile.
func (l *localConnections) once(ctx context.Context, method, conn string, data []byte) (int, error) {
	for {
		c, used, err := l.take(ctx)
		if err != nil {
			return 0, err
		}
		status, more, err := c.do(ctx, method, l.path+"/@connections/"+url.PathEscape(conn), data)
		if err == nil && more {
			l.give(c)
			return status, nil
		}
		_ = c.Close()
		if err == nil {
			return status, nil
		}
		if !used || !more || ctx.Err() != nil {
			return 0, fmt.Errorf("ask the gateway: %w", err)
		}
	}
}

func (l *localConnections) take(ctx context.Context) (c *localConn, used bool, err error) {
	l.mu.Lock()
	if n := len(l.idle); n > 0 {
		c, l.idle = l.idle[n-1], l.idle[:n-1]
	}
	l.mu.Unlock()
	if c != nil {
		return c, true, nil
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", l.socket)
	if err != nil {
		return nil, false, fmt.Errorf("reach the gateway: %w", err)
	}
	return &localConn{Conn: conn, r: bufio.NewReader(conn)}, false, nil
}

func (l *localConnections) give(c *localConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle) < maxIdle {
		l.idle = append(l.idle, c)
		return
	}
	_ = c.Close()
}

// do writes a request at once and reads its answer. more says of a connection that
// answered that it can be used again, and of one that failed that the request can be
// made again: nothing was answered at all. What listens there wants a signature and
// does not look at it.
func (c *localConn) do(ctx context.Context, method, path string, data []byte) (status int, more bool, err error) {
	until, ok := ctx.Deadline()
	if !ok {
		until = time.Now().Add(postWithin)
	}
	if err := c.SetDeadline(until); err != nil {
		return 0, true, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	b := append(c.out[:0], method+" "+path+" HTTP/1.1\r\nHost: local\r\n"+
		"Authorization: AWS4-HMAC-SHA256 Credential=local, SignedHeaders=host, Signature=none\r\nX-Amz-Date: now\r\nContent-Length: "...)
	b = append(append(strconv.AppendInt(b, int64(len(data)), 10), "\r\n\r\n"...), data...)
	if c.out = b; cap(b) > MaxFrame {
		c.out = nil
	}
	if _, err = c.Write(b); err == nil {
		_, err = c.r.Peek(1)
	}
	if err != nil {
		return 0, stop() && !isTimeout(err), err
	}
	res, err := http.ReadResponse(c.r, nil)
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close() // it was read
	}
	if err != nil {
		return 0, false, err
	}
	return res.StatusCode, stop() && !res.Close, nil
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// posted is what became of a post.
func posted(status, size int, err error) error {
	switch {
	case err == nil && status == http.StatusOK:
		return nil
	case err == nil && status == http.StatusGone:
		return session.Errorf(session.Closed, "the connection is gone")
	case err == nil && status == http.StatusRequestEntityTooLarge:
		return session.Errorf(session.TooLarge, "a frame of %d bytes is over the gateway's limit", size)
	}
	return session.Errorf(session.Unavailable, "the gateway did not take a frame").Because(refusedWith(status, err))
}

func refusedWith(status int, err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("it answers %d", status)
}
