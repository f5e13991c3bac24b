package localtest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
)

// Pipes is an in-memory network of [net.Pipe] connections, without buffers and ports. It works in
// testing/synctest, and is a [net.Listener].
type Pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// NewPipes returns a network that nobody listens on yet.
func NewPipes() *Pipes { return &Pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

// Serve serves a handler on a new network until the end of the test.
func Serve(t testing.TB, h http.Handler) *Pipes {
	p := NewPipes()
	s := &http.Server{Handler: h} //nolint:gosec // clients are tests
	go func() { _ = s.Serve(p) }()
	t.Cleanup(func() { _ = s.Close() })
	return p
}

// Accept implements [net.Listener].
func (p *Pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (p *Pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// Addr implements [net.Listener].
func (p *Pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// Dial connects to whoever accepts on p. It ignores the address.
func (p *Pipes) Dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Client returns an HTTP client that uses a new connection for each request.
func (p *Pipes) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: p.Dial, DisableKeepAlives: true}}
}
