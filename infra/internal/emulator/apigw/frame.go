package apigw

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const maxFrame = 32 << 10 // most bytes of payload in one WebSocket frame of a client

// Limits returns API Gateway's limits. AWS does not publish the size of its buffer, and
// passes on any number of messages at once.
func Limits() sockets.Limits {
	return sockets.Limits{
		Message: 128 << 10, SendBuffer: 1 << 20, NewPerSecond: 500, InWork: 1 << 20,
		Idle: 10 * time.Minute, Life: 2 * time.Hour, Connect: storage.ConnectTimeout, Route: 29 * time.Second,
		Guard: func(w http.ResponseWriter) http.ResponseWriter { return &guardedWriter{w, maxFrame} },
	}
}

// guardedWriter is a ResponseWriter whose hijacked connection refuses frames with
// more than limit bytes of payload. The WebSocket library cannot do this: it joins
// frames to messages and hides their sizes.
type guardedWriter struct {
	http.ResponseWriter
	limit int
}

// Hijack implements [http.Hijacker].
func (g *guardedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(g.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	// Frames that came right after the upgrade request are already in rw.
	early, err := rw.Reader.Peek(rw.Reader.Buffered())
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	from := io.MultiReader(bytes.NewReader(bytes.Clone(early)), conn)
	guard := &frameGuard{Conn: conn, from: bufio.NewReader(from), limit: uint64(g.limit)}
	return guard, bufio.NewReadWriter(bufio.NewReader(guard), rw.Writer), nil
}

// frameGuard passes a stream of WebSocket frames (RFC 6455 section 5.2) through unchanged.
// It leaves out every frame over the limit. Read then returns sockets.ErrTooBig once in its
// place. So the reader can still go on to the client's close frame.
type frameGuard struct {
	net.Conn
	from    *bufio.Reader
	limit   uint64
	pass    uint64 // bytes of the present frame that are still to be passed on
	discard uint64 // bytes of a frame over the limit still to discard
}

func (g *frameGuard) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for g.discard > 0 {
		n, err := g.from.Discard(int(min(g.discard, 1<<20)))
		g.discard -= uint64(n)
		if err != nil {
			return 0, err
		}
	}
	if g.pass == 0 {
		header, payload, err := g.nextFrame()
		if err != nil {
			return 0, err
		}
		if payload > g.limit {
			g.discard = header + payload
			return 0, sockets.ErrTooBig
		}
		g.pass = header + payload
	}
	n, err := g.from.Read(p[:min(uint64(len(p)), g.pass)])
	g.pass -= uint64(n)
	return n, err
}

// nextFrame reads the header of the next frame without consuming it, and returns the
// lengths of the header and the payload. A payload length with the top bit set, which
// RFC 6455 forbids, counts as over every limit.
func (g *frameGuard) nextFrame() (header, payload uint64, err error) {
	b, err := g.from.Peek(2)
	if err != nil {
		return 0, 0, whole(err, len(b))
	}
	const masked, length = 0x80, 0x7f
	header, payload = 2, uint64(b[1]&length)
	switch payload {
	case 126:
		header = 4
	case 127:
		header = 10
	}
	if b, err = g.from.Peek(int(header)); err != nil {
		return 0, 0, whole(err, len(b))
	}
	switch header {
	case 4:
		payload = uint64(binary.BigEndian.Uint16(b[2:]))
	case 10:
		payload = min(binary.BigEndian.Uint64(b[2:]), 1<<62)
	}
	if b[1]&masked != 0 {
		header += 4
	}
	return header, payload, nil
}

// whole turns an EOF within a header into io.ErrUnexpectedEOF.
func whole(err error, got int) error {
	if got > 0 && errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
