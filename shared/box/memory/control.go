package memory

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxChunk is how many bytes a chunk of memory from a keeper may have.
const maxChunk = 1 << 20

// maxMessage is how many bytes a message from a keeper may have.
const maxMessage = 64 << 10

// Control is the runner's end of the socket to a keeper, a program that runs a server in a virtual
// kernel and can freeze it. Only one goroutine at a time may call its methods. After an error the
// keeper can only be ended.
type Control struct {
	conn net.Conn
	in   *bufio.Reader
}

// UnfitError says why a keeper cannot thaw an image. The keeper can still start the program anew. If
// the thaw itself failed, the program may have gone on for a moment, with no input but that before
// the freeze.
type UnfitError struct{ Why string }

// Error returns the reason.
func (e *UnfitError) Error() string { return e.Why }

// Pair makes a pair of connected sockets. The caller passes the file theirs to a keeper, and then
// closes it.
func Pair() (c *Control, theirs *os.File, err error) {
	syscall.ForkLock.RLock() // keeps other goroutines from a fork before CloseOnExec; macOS has no SOCK_CLOEXEC
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket for the keeper: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "control") //nolint:gosec // a descriptor is no large number
	theirs = os.NewFile(uintptr(fds[1]), "control")
	conn, err := net.FileConn(ours)
	if err = errors.Join(err, ours.Close()); err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return newControl(conn), theirs, nil
}

func newControl(conn net.Conn) *Control {
	return &Control{conn: conn, in: bufio.NewReaderSize(conn, maxMessage)}
}

// Close closes the runner's end of the socket.
func (c *Control) Close() { _ = c.conn.Close() }

// message is one line of JSON in either direction, with exactly one of these members.
type message struct {
	Fit    Fit    `json:"fit,omitempty"`
	Start  bool   `json:"start,omitempty"`
	Thaw   bool   `json:"thaw,omitempty"`
	Begun  bool   `json:"begun,omitempty"`
	Unfit  string `json:"unfit,omitempty"`
	Freeze bool   `json:"freeze,omitempty"`
	Image  bool   `json:"image,omitempty"`
	Frozen bool   `json:"frozen,omitempty"`
	Failed string `json:"failed,omitempty"`
}

// within makes all reads and writes of the connection fail once ctx has ended, until done is
// called.
func (c *Control) within(ctx context.Context) (done func()) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	return func() {
		if stop() {
			_ = c.conn.SetDeadline(time.Time{})
		}
	}
}

func (c *Control) say(m message) error {
	text, err := json.Marshal(m)
	if err == nil {
		_, err = c.conn.Write(append(text, '\n'))
	}
	return err
}

func (c *Control) hear() (m message, err error) {
	line, err := c.in.ReadSlice('\n')
	if errors.Is(err, io.EOF) {
		return m, errors.New("the keeper has ended")
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("the keeper said what is no message: %w", err)
	}
	if m.Failed != "" {
		return m, errors.New(oneLine(m.Failed))
	}
	return m, nil
}

// Fit waits for the first message of the keeper, which says which images it can thaw.
func (c *Control) Fit(ctx context.Context) (Fit, error) {
	defer c.within(ctx)()
	m, err := c.hear()
	if err == nil && m.Fit == nil {
		err = errors.New("the keeper did not say which images fit it")
	}
	return m.Fit, err
}

// Start makes the keeper start the program without an image, and waits until the program runs.
func (c *Control) Start(ctx context.Context) error {
	defer c.within(ctx)()
	if err := c.say(message{Start: true}); err != nil {
		return err
	}
	return c.begun()
}

// Thaw sends the keeper an image that Freeze has written, and waits until the program runs. The
// error is an [*UnfitError] if the keeper cannot use the image.
func (c *Control) Thaw(ctx context.Context, image io.Reader) error {
	defer c.within(ctx)()
	if err := c.say(message{Thaw: true}); err != nil {
		return err
	}
	if err := copyChunks(c.conn, image); err != nil {
		return err
	}
	return c.begun()
}

func (c *Control) begun() error {
	m, err := c.hear()
	switch {
	case err != nil:
		return err
	case m.Unfit != "":
		return &UnfitError{oneLine(m.Unfit)}
	case !m.Begun:
		return errors.New("the keeper did not say that the program runs")
	}
	return nil
}

// Freeze stops the program for good, and writes its memory to w. After an error the caller must
// end the program.
func (c *Control) Freeze(ctx context.Context, w io.Writer) error {
	defer c.within(ctx)()
	if err := c.say(message{Freeze: true}); err != nil {
		return err
	}
	m, err := c.hear()
	if err == nil && !m.Image {
		err = errors.New("the keeper sent no image")
	}
	if err != nil {
		return err
	}
	if err := copyChunks(w, c.in); err != nil {
		return err
	}
	if m, err = c.hear(); err == nil && !m.Frozen {
		err = errors.New("the keeper did not say that the image is whole")
	}
	return err
}

// copyChunks copies chunks, each with its length before it, up to the empty chunk at the end.
func copyChunks(to io.Writer, from io.Reader) error {
	buffer := make([]byte, 4+maxChunk)
	for {
		if _, err := io.ReadFull(from, buffer[:4]); err != nil {
			return damaged(err)
		}
		n := binary.BigEndian.Uint32(buffer)
		if n > maxChunk {
			return lost("a chunk of its image has %d bytes", n)
		}
		if _, err := io.ReadFull(from, buffer[4:4+n]); err != nil {
			return damaged(err)
		}
		if _, err := to.Write(buffer[:4+n]); err != nil || n == 0 {
			return err
		}
	}
}

// oneLine returns the first line of a text, at most 400 bytes, for a log.
func oneLine(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return text[:min(len(text), 400)]
}
