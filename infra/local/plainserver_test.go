package local

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// plain serves a handler, and returns a connection to it.
func plain(t *testing.T, h http.HandlerFunc) (conn net.Conn, s *plainServer) {
	t.Helper()
	l, err := listenUnix(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	s = &plainServer{handler: h, log: slog.New(slog.DiscardHandler)}
	ended := make(chan error, 1)
	go func() { ended <- s.serve(l) }()
	t.Cleanup(func() {
		_ = l.Close()
		s.close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("it ended with %v", err)
		}
	})
	if conn, err = net.Dial("unix", l.Addr().String()); err != nil { //nolint:noctx // it answers at once
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, s
}

// spoken writes a request by hand and reads the answer.
func spoken(t *testing.T, conn net.Conn, r *bufio.Reader, text string) (status int, header http.Header, body string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(all)
}

func TestRequestsOfAConnectionAreServedOneAfterTheOther(t *testing.T) {
	conn, _ := plain(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/unread" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Method", r.Method)
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write(bytes.ToUpper(body))
	})
	r := bufio.NewReader(conn)
	for range 2 {
		status, header, body := spoken(t, conn, r, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
		if status != http.StatusAccepted || header.Get("X-Method") != "POST" || body != "HELLO" {
			t.Errorf("%d %v %q", status, header, body)
		}
		if status, _, body := spoken(t, conn, r, "POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"); status != http.StatusNoContent || body != "" {
			t.Errorf("%d %q", status, body)
		}
	}
	if _, err := io.WriteString(conn, "no HTTP\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
		t.Errorf("what is no HTTP is answered with %q, %v", rest, err)
	}
}

func TestAClientThatAsksFirstIsToldToGoOn(t *testing.T) {
	conn, _ := plain(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x/", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Expect", "100-continue")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if body, err := io.ReadAll(res.Body); string(body) != "body" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
}

func TestAPanicEndsItsConnectionOnly(t *testing.T) {
	conn, s := plain(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("no way on")
		}
	})
	if _, err := io.WriteString(conn, "GET /panic HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(conn); len(rest) > 0 || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
	here, there := net.Pipe()
	defer func() { _ = here.Close() }()
	if !s.note(there) {
		t.Fatal("it takes no connections any more")
	}
	go s.talk(there)
	if status, _, _ := spoken(t, here, bufio.NewReader(here), "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
}
