package local

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// plainServer is an HTTP server for the functions' sockets, whose requests and answers
// are small and which nobody leaves in the middle: it reads a request, serves it in the
// same goroutine and writes the answer at once. [http.Server] has a second goroutine
// watch each connection meanwhile, which costs as much as an answer.
type plainServer struct {
	handler http.Handler
	log     *slog.Logger

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool
}

// serve takes connections of l until it is closed.
func (s *plainServer) serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("take a connection: %w", err)
		}
		if !s.note(conn) {
			_ = conn.Close()
			return net.ErrClosed
		}
		go s.talk(conn)
	}
}

func (s *plainServer) note(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		s.conns = map[net.Conn]bool{}
	}
	s.conns[conn] = true
	return !s.closed
}

// close cuts all connections; the listener is its owner's.
func (s *plainServer) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for conn := range s.conns {
		_ = conn.Close()
	}
}

// talk serves a connection to its end. What a handler panics with ends it.
func (s *plainServer) talk(conn net.Conn) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
		_ = conn.Close()
		if fault := recover(); fault != nil {
			s.log.Error("a request of a function panicked", "fault", fault)
		}
	}()
	r := bufio.NewReader(conn)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return // it has gone, or speaks no HTTP
		}
		req.RemoteAddr = conn.RemoteAddr().String()
		w := &plainAnswer{header: http.Header{}}
		if req.Header.Get("Expect") != "" {
			_, _ = conn.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n")) // a write that fails does so again
		}
		s.handler.ServeHTTP(w, req)
		// What the handler has left unread is in the way of the next request.
		_, drained := bytes.NewBuffer(nil).ReadFrom(http.MaxBytesReader(nil, req.Body, maxRequestBody))
		if _, err := conn.Write(w.bytes(req.Method)); err != nil || drained != nil || req.Close {
			return
		}
	}
}

// plainAnswer gathers an answer.
type plainAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *plainAnswer) Header() http.Header { return w.header }

func (w *plainAnswer) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *plainAnswer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// bytes is the answer on the wire.
func (w *plainAnswer) bytes(method string) []byte {
	w.WriteHeader(http.StatusOK)
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 " + strconv.Itoa(w.status) + " " + http.StatusText(w.status) + "\r\n")
	if w.status != http.StatusNoContent {
		w.header["Content-Length"] = []string{strconv.Itoa(w.body.Len())}
	}
	w.header["Date"] = []string{time.Now().UTC().Format(http.TimeFormat)}
	_ = w.header.Write(&b) // memory takes all
	b.WriteString("\r\n")
	if method != http.MethodHead {
		_, _ = w.body.WriteTo(&b)
	}
	return b.Bytes()
}

// servePlain is serve for a socket of functions.
func (m *machine) servePlain(name string, h http.Handler) error {
	l, err := listenUnix(m.socketFile(name))
	if err != nil {
		return fmt.Errorf("open the %s socket: %w", name, err)
	}
	s := &plainServer{handler: h, log: m.log}
	go func() {
		if err := s.serve(l); !errors.Is(err, net.ErrClosed) {
			m.log.Error("a server has stopped", "address", l.Addr().String(), "error", err)
		}
	}()
	m.closers = append(m.closers, func(context.Context) error {
		err := l.Close()
		s.close()
		return err
	})
	return nil
}
