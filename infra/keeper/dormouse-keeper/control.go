package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/keeper/box"
)

// freezing limits the time to freeze a server and to send its memory. It also limits the time to
// thaw a server once its memory was received.
const freezing = 10 * time.Second

// chunk is how many bytes a chunk of an image may have.
const chunk = 1 << 20

// control is the keeper's end of a socket to a runner that stores the memory of a server while the
// server sleeps. An image is that memory as bytes. Messages are lines of JSON; ← is from the
// keeper:
//
//	← {"fit": {NAME: TEXT}}   what a memory depends on: see [box.Spec.Fit]
//	→ {"start": true}         start the server; or {"thaw": true} and an image: go on from there
//	← {"begun": true}         the server runs; or {"unfit": WHY}: the runner orders again
//	→ {"freeze": true}        at any later time: end the server, and send its memory
//	← {"image": true}         then the image, and {"frozen": true}; or {"failed": WHY}
//
// An image is a sequence of chunks. A chunk is a length in 4 bytes, big-endian, and that number of
// bytes; the length 0 ends the image. Before the keeper sends an image, all processes of the box
// have ended. If the runner closes the socket before the server has begun, the keeper ends.
type control struct {
	conn net.Conn
	in   *bufio.Reader
}

// order is a message from the runner.
type order struct{ Start, Thaw, Freeze bool }

func newControl(descriptor int) (*control, error) {
	f := os.NewFile(uintptr(descriptor), "control")
	conn, err := net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("--control %d: %w", descriptor, err)
	}
	return &control{conn, bufio.NewReaderSize(conn, 64<<10)}, nil
}

// tell sends a message to the runner.
func (c *control) tell(what string, value any) error {
	return json.NewEncoder(c.conn).Encode(map[string]any{what: value})
}

// hear waits for a message from the runner.
func (c *control) hear() (o order, err error) {
	line, err := c.in.ReadSlice('\n')
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err != nil {
		err = fmt.Errorf("the runner's orders: %w", err)
	}
	return o, err
}

// serve runs a server as the runner orders, and returns the exit code for the keeper. The function
// fit returns what the memory of the server depends on. serve calls attend in a goroutine of its
// own, with the box of the running server.
func (c *control) serve(ctx context.Context, l launch, fit func() (map[string]string, error), attend func(*box.Box)) (int, error) {
	b, err := c.begin(ctx, l, fit)
	if err != nil {
		return failed, err
	}
	_ = c.tell("begun", true) // an error means that the runner has ended, and the function attend notices that
	go attend(b)
	type end struct {
		code int
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		code, err := b.Wait()
		ended <- end{code, err}
	}()
	freeze := make(chan bool)
	go func() {
		for {
			o, err := c.hear()
			if err != nil {
				return // no more orders will come
			}
			if o.Freeze {
				close(freeze)
				return
			}
		}
	}()
	select {
	case e := <-ended:
		return e.code, e.err
	case <-freeze:
	}
	ctx, stop := context.WithTimeout(context.Background(), freezing)
	defer stop()
	m, err := b.Freeze(ctx)
	<-ended // after this no process of the box is left
	if err == nil {
		err = errors.Join(c.send(ctx, l, m), m.Close())
	}
	if err != nil {
		_ = c.tell("failed", err.Error()) // after an error, the runner sees that the keeper ends
		return failed, err
	}
	return 0, nil
}

// begin starts the server, or thaws it from an image, as the runner orders.
func (c *control) begin(ctx context.Context, l launch, fit func() (map[string]string, error)) (_ *box.Box, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.Close() }) // makes c.hear and c.tell fail when ctx ends
	defer stop()
	ready := l.prepare()
	defer func() {
		if err != nil && ready != nil {
			if p := <-ready; p.err == nil {
				p.box.Close()
			}
		}
	}()
	same, err := fit() // computed while the box is being prepared
	if err == nil {
		err = c.tell("fit", same)
	}
	if err != nil {
		return nil, err
	}
	for {
		o, err := c.hear()
		if err != nil {
			return nil, err
		}
		var m *box.Memory
		var unfit error
		switch {
		case o.Thaw:
			chunks := &chunkReader{from: c.in}
			m, unfit = box.ReadMemory(chunks)
			if _, err := io.Copy(io.Discard, chunks); err != nil { // skips the rest of a damaged image
				return nil, err
			}
		case !o.Start:
			return nil, errors.New("the runner's orders: neither start nor thaw comes first")
		}
		if unfit == nil {
			p := <-ready
			ready = nil
			if p.err != nil {
				return nil, p.err
			}
			if m == nil {
				return p.box, p.box.Begin()
			}
			if unfit = thaw(ctx, l, p.box, m); unfit == nil {
				return p.box, nil
			}
			p.box.Close()
			ready = l.prepare()
		}
		if err := c.tell("unfit", unfit.Error()); err != nil {
			return nil, err
		}
	}
}

// thaw makes the server go on from its memory m in a prepared box, and closes m.
func thaw(ctx context.Context, l launch, b *box.Box, m *box.Memory) (err error) {
	defer func() { _ = m.Close() }() // nothing was written
	if l.gate != nil {
		var names map[string]netip.Addr
		if err := json.Unmarshal(m.Note, &names); err != nil {
			return err
		}
		if err := l.gate.Remember(names); err != nil {
			return err
		}
	}
	ctx, stop := context.WithTimeout(ctx, freezing)
	defer stop()
	return b.Thaw(ctx, m)
}

// send sends a memory as an image, with the addresses of [gate.Gate.Names].
func (c *control) send(ctx context.Context, l launch, m *box.Memory) (err error) {
	if l.gate != nil {
		if m.Note, err = json.Marshal(l.gate.Names()); err != nil {
			return err
		}
	}
	if until, ok := ctx.Deadline(); ok {
		if err := c.conn.SetWriteDeadline(until); err != nil {
			return err
		}
	}
	if err := c.tell("image", true); err != nil {
		return err
	}
	out := bufio.NewWriterSize(chunkWriter{c.conn}, chunk)
	if err := errors.Join(m.Write(out), out.Flush()); err != nil {
		return err
	}
	if _, err := c.conn.Write(make([]byte, 4)); err != nil {
		return err
	}
	return c.tell("frozen", true)
}

type chunkWriter struct{ to net.Conn }

func (w chunkWriter) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		part := p[n:min(len(p), n+chunk)]
		all := net.Buffers{binary.BigEndian.AppendUint32(nil, uint32(len(part))), part}
		_, err = all.WriteTo(w.to)
		n += len(part)
	}
	return n, err
}

// chunkReader returns the bytes of an image without the lengths of its chunks.
type chunkReader struct {
	from io.Reader
	left uint32 // bytes of the present chunk that were not read yet
	over bool   // the empty chunk at the end was read
}

func (r *chunkReader) Read(p []byte) (int, error) {
	if r.left == 0 && !r.over {
		var size [4]byte
		if _, err := io.ReadFull(r.from, size[:]); err != nil {
			return 0, unexpected(err)
		}
		if r.left = binary.BigEndian.Uint32(size[:]); r.left > chunk {
			return 0, fmt.Errorf("a chunk of %d bytes: it may have %d", r.left, chunk)
		}
		r.over = r.left == 0
	}
	if r.over {
		return 0, io.EOF
	}
	n, err := r.from.Read(p[:min(len(p), int(r.left))])
	r.left -= uint32(n)
	return n, unexpected(err)
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
