package sqlitestore

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// slowest is the pace at which a waiter reads even if nothing rings: a ring can
// be lost when the writer dies between its write and the ring.
const slowest = time.Second

// Wait waits for something to read; see [session.Log].
//
// The waiter binds a unix datagram socket with a name made from the stream, in
// the folder "w" beside the database (or, when that path is too long for a
// socket, "/tmp/dormouse-<uid>-<hash of the path>"); the folder is for this user
// only. Then it reads, then it waits: a writer that came before the socket is
// found by the read, and one that comes after it rings. Up to four waiters of one
// stream are rung; any more read at a falling pace, at most a second apart.
//
// A stream with the mark of this store (see [Store.Mark]) needs none of that: there
// is one socket for all of them, bound before any began, and the first wait reads
// only when it has rung, and not even then if the ring has brought what it would
// read.
func (s *Store) Wait(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, until time.Time) (session.Page, error) {
	if !time.Now().Before(until) {
		return s.waitRead(ctx, id, stream, after)
	}
	var b waiter
	quiet := false
	if e := s.desk.wait(id, stream); e != nil {
		b, quiet = e, e.quiet
	} else {
		b = s.bells.hang(id, stream)
	}
	defer b.takeDown()
	begun, rung := time.Now(), false
	var brought ring
	for {
		p, known := brought.page(after)
		var err error
		if !quiet && !known {
			p, err = s.waitRead(ctx, id, stream, after)
		}
		quiet = false
		now := time.Now()
		if err != nil || len(p.Events) > 0 || rung || !now.Before(until) {
			return p, err
		}
		next := now.Add(slowest)
		if !b.rings() {
			next = now.Add(min(max(now.Sub(begun)/10, 5*time.Millisecond), slowest))
		}
		if next.After(until) {
			next = until
		}
		brought, rung = b.wait(ctx, next)
	}
}

// waiter is one wait for a ring.
type waiter interface {
	rings() bool // whether anybody can ring it
	// wait returns true when it is rung, false at until or when ctx ends.
	wait(ctx context.Context, until time.Time) (r ring, rung bool)
	takeDown()
}

// waitRead reads a page; a context that has ended is its own error.
func (s *Store) waitRead(ctx context.Context, id session.ID, stream session.StreamID, after session.Index) (session.Page, error) {
	if err := ctx.Err(); err != nil {
		return session.Page{}, err
	}
	p, err := s.Read(ctx, id, stream, after, session.MaxWait)
	if err != nil && ctx.Err() != nil {
		return session.Page{}, ctx.Err()
	}
	return p, err
}

// bells is how processes wake one another: a folder of datagram sockets.
type bells struct {
	dir string
	db  string   // base name of the database: folders may hold several
	out *os.File // an unbound datagram socket that everything is sent from
}

const (
	// ringTime bounds how long a writer waits until a process has room for a ring.
	ringTime = 20 * time.Millisecond
	// slots is how many waiters of one stream can be rung.
	slots = 4
	// maxSocketPath is what macOS takes, the least of all.
	maxSocketPath = 103
	keyLength     = 16
	nameLength    = keyLength + len(".0")
)

// The datagrams, by their first byte. To the socket of one waiter it is all there is;
// to that of a desk the key of the stream follows.
const (
	ringing = 'r' // and to a desk, what was written; see ring
	waiting = 'w' // to a desk: somebody else waits for a stream that began there
	probe   = 'p' // is somebody there? not a ring
)

func newBells(path string) (*bells, error) {
	b := &bells{dir: filepath.Join(filepath.Dir(path), "w"), db: filepath.Base(path)}
	if len(b.dir)+1+nameLength > maxSocketPath {
		b.dir = filepath.Join("/tmp", fmt.Sprintf("dormouse-%d-%s", os.Getuid(), shortHash(b.dir)))
	}
	if err := b.makeDir(); err != nil {
		return nil, err
	}
	// Nobody may fork between the two calls, or the child keeps the socket.
	syscall.ForkLock.RLock()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err == nil {
		unix.CloseOnExec(fd)
		// It can only fail for a time that cannot be, and rings would wait for longer.
		limit := unix.NsecToTimeval(ringTime.Nanoseconds())
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("open a datagram socket: %w", err)
	}
	b.out = os.NewFile(uintptr(fd), "bells")
	return b, nil
}

// makeDir makes the folder for this user only, and refuses one of somebody else,
// who could read along.
func (b *bells) makeDir() error {
	if err := os.Mkdir(b.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(b.dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%s is not a folder of this user; remove it", b.dir)
	}
	if info.Mode().Perm() != 0o700 {
		return os.Chmod(b.dir, 0o700)
	}
	return nil
}

func (b *bells) close() { _ = b.out.Close() }

func shortHash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return strings.ToLower(base32.HexEncoding.EncodeToString(sum[:10]))
}

// name is where waiter number slot of a stream listens.
func (b *bells) name(id session.ID, stream session.StreamID) string {
	return filepath.Join(b.dir, b.key(id, stream))
}

// key is the name of a stream in datagrams and of sockets.
func (b *bells) key(id session.ID, stream session.StreamID) string {
	return shortHash(b.db, string(id), string(stream))
}

func slotName(name string, slot int) string { return name + "." + strconv.Itoa(slot) }

// ring wakes those who wait for a stream, and tells those at its desk what was
// written. It blocks for ringTime at most; a waiter that cannot be rung has rings
// enough already, or reads by itself within a second.
//
// A desk knows who waits elsewhere for the streams that began there, so that nobody
// has to be looked for: usually nobody does.
func (s *Store) ring(id session.ID, stream session.StreamID, r ring) {
	key, mark := s.bells.key(id, stream), stream.Mark()
	if mark != "" && (s.desk.rings(mark, key, r) || s.bells.sendDesk(mark, ringing, key, r) == nil) {
		return
	}
	s.bells.ringFrom(filepath.Join(s.bells.dir, key), 0)
}

// sendDesk sends a datagram to a desk. The kernel keeps ten for a socket, and this one
// is for all streams of a process: there has to be room soon.
func (b *bells) sendDesk(mark string, kind byte, key string, r ring) error {
	desk, what := filepath.Join(b.dir, deskName(mark)), r.append(append([]byte{kind}, key...))
	err := b.send(desk, what, unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) {
		err = b.send(desk, what, 0)
	}
	return err
}

// ringFrom rings the waiters of a stream from a slot on. They fill the slots from
// the first: behind an empty one there is nobody.
func (b *bells) ringFrom(name string, slot int) {
	for ; slot < slots; slot++ {
		if errors.Is(b.send(slotName(name, slot), []byte{ringing}, unix.MSG_DONTWAIT), unix.ENOENT) {
			return
		}
	}
}

func (b *bells) send(name string, what []byte, flags int) error {
	raw, err := b.out.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		err = unix.Sendto(int(fd), what, flags, &unix.SockaddrUnix{Name: name})
	})
	return errors.Join(controlErr, err)
}

// bell is one waiter's socket. Without a conn nobody can ring it.
type bell struct {
	bells *bells
	name  string // of the stream
	mark  string // of the stream
	slot  int
	conn  *net.UnixConn
}

// hang binds a socket for a waiter of a stream, in the first slot that is free.
func (b *bells) hang(id session.ID, stream session.StreamID) bell {
	name := b.name(id, stream)
	for slot := range slots {
		if conn := b.take(slotName(name, slot)); conn != nil {
			w := bell{bells: b, name: name, mark: stream.Mark(), slot: slot, conn: conn}
			_ = w.rings() // it is asked again
			return w
		}
	}
	return bell{}
}

// take binds a socket in a slot, nil if it is taken.
func (b *bells) take(name string) *net.UnixConn {
	conn, err := bind(name)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		if !errors.Is(b.send(name, []byte{probe}, unix.MSG_DONTWAIT), unix.ECONNREFUSED) {
			return nil
		}
		// Its waiter was killed. Should another waiter do the same at the same
		// moment, one of the two is left to read by itself.
		_ = os.Remove(name)
		conn, err = bind(name)
	case errors.Is(err, unix.ENOENT):
		if err = b.makeDir(); err == nil {
			conn, err = bind(name)
		}
	}
	if err != nil {
		return nil
	}
	return conn
}

func bind(name string) (*net.UnixConn, error) {
	return net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
}

// takeDown frees the slot. Those behind it would not be rung any more: they are
// rung now, come back, and take a slot that is.
func (b bell) takeDown() {
	if b.conn != nil {
		_ = os.Remove(slotName(b.name, b.slot))
		_ = b.conn.Close()
		b.bells.ringFrom(b.name, b.slot+1)
	}
}

// rings tells the desk of the stream, which forgets in a while. Without a desk that
// lives, writers ring here themselves.
func (b bell) rings() bool {
	if b.conn == nil || b.mark == "" {
		return b.conn != nil
	}
	err := b.bells.sendDesk(b.mark, waiting, filepath.Base(b.name), ring{})
	return err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
}

// wait returns no more than that something rang.
func (b bell) wait(ctx context.Context, until time.Time) (r ring, rung bool) {
	if b.conn == nil {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		return ring{}, false
	}
	if err := b.conn.SetReadDeadline(until); err != nil {
		return ring{}, false
	}
	// The deadline set when ctx ends comes after the one above, because ctx is
	// looked at in between.
	stop := context.AfterFunc(ctx, func() { _ = b.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var what [1]byte
	for {
		n, err := b.conn.Read(what[:])
		if err != nil {
			return ring{}, false
		}
		if n == 1 && what[0] == ringing {
			return ring{}, true
		}
	}
}

// stale is the age from which a socket may be one that a killed waiter left.
const stale = time.Minute

// sweep removes the sockets of waiters that were killed.
func (b *bells) sweep() error {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < stale {
			continue
		}
		name := filepath.Join(b.dir, e.Name())
		if errors.Is(b.send(name, []byte{probe}, unix.MSG_DONTWAIT), unix.ECONNREFUSED) {
			_ = os.Remove(name)
		}
	}
	return nil
}
