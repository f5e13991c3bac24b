package relay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// line is the network between a relay function and a runner. Nothing is lost on it, unless a
// test cuts it.
type line struct {
	relay *relayserver.Handler
	takes time.Duration                  // each message, and the start of a connection
	fate  func(down bool, m []byte) fate // of each message
	work  sync.WaitGroup                 // what relay functions and the box do

	mu     sync.Mutex
	conns  map[string]*lineConn // those that are open, by name
	opened int
}

// fate is what becomes of a message, and of its connection.
type fate int

const (
	arrives fate = iota
	cutBefore
	cutAfter
)

func (l *line) dial(context.Context, string, http.Header) (runner.Conn, error) {
	time.Sleep(l.takes)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil {
		l.conns = map[string]*lineConn{}
	}
	l.opened++
	c := &lineConn{l: l, name: fmt.Sprint("c", l.opened), in: make(chan []byte, 1000), closed: make(chan struct{})}
	l.conns[c.name] = c
	return c, nil
}

func (l *line) Post(_ context.Context, conn string, data []byte) error {
	l.mu.Lock()
	c := l.conns[conn]
	l.mu.Unlock()
	if c == nil {
		return storage.Errorf(storage.Closed, "simulated: gone")
	}
	if l.takes == 0 {
		c.down(data)
		return nil
	}
	l.work.Go(func() { c.down(data) })
	return nil
}

// lineConn is a connection of a runner.
type lineConn struct {
	l      *line
	name   string
	in     chan []byte
	once   sync.Once
	closed chan struct{}
}

// meets returns the fate of a message. It closes a connection that is cut before it.
func (c *lineConn) meets(down bool, data []byte) fate {
	met := c.l.fate(down, data)
	if met == cutBefore {
		_ = c.Close("")
	}
	return met
}

func (c *lineConn) Send(data []byte) error {
	met := c.meets(false, data)
	if met == cutBefore {
		return io.ErrClosedPipe
	}
	c.l.work.Go(func() {
		time.Sleep(c.l.takes)
		if met == cutAfter {
			_ = c.Close("")
		}
		reply, err := c.l.relay.Frame(context.Background(), c.name, data)
		if err != nil && !errors.Is(err, storage.Closed) {
			panic(err)
		}
		if reply != nil {
			c.down(reply)
		}
	})
	return nil
}

// down takes a message to the runner.
func (c *lineConn) down(data []byte) {
	time.Sleep(c.l.takes)
	switch c.meets(true, data) {
	case cutBefore:
		return
	case cutAfter:
		defer func() { _ = c.Close("") }()
	case arrives:
	}
	select {
	case <-c.closed:
	default:
		c.in <- data
	}
}

func (c *lineConn) Receive() ([]byte, error) {
	select {
	case data := <-c.in:
		return data, nil
	default:
	}
	select {
	case data := <-c.in:
		return data, nil
	case <-c.closed:
		return nil, io.EOF
	}
}

func (c *lineConn) Close(string) error {
	c.once.Do(func() {
		close(c.closed)
		c.l.mu.Lock()
		defer c.l.mu.Unlock()
		delete(c.l.conns, c.name)
	})
	return nil
}
