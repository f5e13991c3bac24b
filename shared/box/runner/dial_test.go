package runner_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// rawServer is the server's end of one WebSocket connection, frame by frame.
type rawServer struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

// wsFrame is one WebSocket frame as it stood on the wire.
type wsFrame struct {
	fin     bool
	opcode  byte
	size    int // with header
	payload []byte
}

// dialRaw connects DialWebSocket with a rawServer.
func dialRaw(t *testing.T) (runner.Conn, *rawServer) {
	t.Helper()
	accepted := make(chan *rawServer, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, in, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Accept: "+base64.StdEncoding.EncodeToString(sum[:])+"\r\n\r\n")
		accepted <- &rawServer{t, conn, in.Reader}
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel() // bounds the opening only
	conn, err := runner.DialWebSocket(ctx, "ws"+strings.TrimPrefix(server.URL, "http"), nil)
	commontest.OK(t, err)
	s := <-accepted
	t.Cleanup(func() {
		_ = s.conn.Close()
		_ = conn.Close("test is over")
	})
	return conn, s
}

func (s *rawServer) read() wsFrame {
	s.t.Helper()
	var head [2]byte
	s.full(head[:])
	f := wsFrame{fin: head[0]&0x80 != 0, opcode: head[0] & 0x0f, size: 2}
	if head[1]&0x80 == 0 {
		s.t.Fatal("a client's frame without a mask")
	}
	length := int(head[1] & 0x7f)
	switch length {
	case 126:
		var b [2]byte
		s.full(b[:])
		length, f.size = int(binary.BigEndian.Uint16(b[:])), f.size+2
	case 127:
		var b [8]byte
		s.full(b[:])
		length, f.size = int(binary.BigEndian.Uint64(b[:])), f.size+8
	}
	var mask [4]byte
	s.full(mask[:])
	f.payload = make([]byte, length)
	s.full(f.payload)
	for i := range f.payload {
		f.payload[i] ^= mask[i%4]
	}
	f.size += 4 + length
	return f
}

func (s *rawServer) full(p []byte) {
	s.t.Helper()
	_, err := io.ReadFull(s.in, p)
	commontest.OK(s.t, err)
}

// write writes one frame as a server does, with a message or a part of one.
func (s *rawServer) write(first byte, payload []byte) {
	head := binary.BigEndian.AppendUint64([]byte{first, 127}, uint64(len(payload)))
	_, _ = s.conn.Write(append(head, payload...)) // the reader misses it if it failed
}

func TestMessagesGoOutInFramesTheGatewayTakes(t *testing.T) {
	conn, server := dialRaw(t)
	for _, size := range []int{0, 1, 32_754, 32_755, 65_508, 65_509, frame.MaxFrame} {
		message := []byte(strings.Repeat("é", size/2) + strings.Repeat("x", size%2))
		sent := make(chan error, 1)
		go func() { sent <- conn.Send(message) }()
		var got []byte
		for i := 0; ; i++ {
			f := server.read()
			if f.size > frame.MaxWSFrame {
				t.Errorf("message of %d bytes: frame %d has %d bytes", size, i, f.size)
			}
			if want := byte(min(1-i, 1)); i < 2 && f.opcode != want || i >= 2 && f.opcode != 0 {
				t.Errorf("message of %d bytes: frame %d has opcode %d", size, i, f.opcode)
			}
			got = append(got, f.payload...)
			if f.fin {
				break
			}
		}
		commontest.Check(t, <-sent)
		if !bytes.Equal(got, message) {
			t.Errorf("message of %d bytes came as %d others", size, len(got))
		}
	}
}

func TestMessagesOfTheGatewaysLimitAreRead(t *testing.T) {
	conn, server := dialRaw(t)
	message := bytes.Repeat([]byte("x"), 131_072)
	go server.write(0x81, message)
	got, err := conn.Receive()
	if err != nil || !bytes.Equal(got, message) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	go server.write(0x81, append(message, 'x'))
	if _, err := conn.Receive(); err == nil {
		t.Error("a message over the limit was read")
	}
}
