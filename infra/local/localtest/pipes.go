package localtest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
)

// Pipes is a network without buffers and ports. It works in synctest, and is a
// [net.Listener].
type Pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// NewPipes returns a network on which nothing is served yet.
func NewPipes() *Pipes { return &Pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

// Serve serves a handler on a network of its own until the end of the test.
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

// Dial connects to the served handler, whatever the address. It has the type of
// http.Transport.DialContext.
func (p *Pipes) Dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Client returns an HTTP client that keeps no connection open.
func (p *Pipes) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: p.Dial, DisableKeepAlives: true}}
}
