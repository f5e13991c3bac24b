package snapshot

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/klauspost/compress/s2"
	"golang.org/x/sys/unix"
)

// The archive of a whole folder must unpack fast: an install has thousands of small
// files, and a box that wakes has only part of a processor. So the compression is S2,
// which unpacks faster than zstd and takes a fifth more space. Entries have the short
// headers of tar where their names fit, and files have no times. So each file takes three
// system calls.

// wholeVersion is the version of such an archive. Its header is that of a snapshot.
const wholeVersion = "whole-1"

// blockBytes is how much S2 compresses at a time.
const blockBytes = 1 << 20

// Pack writes a whole folder to w. Unlike a snapshot it has all names, links that lead
// out of the folder, and files with another name outside. It does not have the times of
// files. It fails with a [*LimitError] if the folder exceeds limits. It also fails if
// something changes the folder meanwhile, or if an entry cannot be read.
func Pack(ctx context.Context, w io.Writer, folder string, limits Limits) error {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // only read
	limits = limits.withDefaults()
	now, err := scanAs(ctx, root, limits, true)
	if err != nil {
		return err
	}
	c, err := compare(tree{}, now, limits)
	if err != nil {
		return err
	}
	if c.stats.leftOut > 0 {
		return fmt.Errorf("%d entries of the folder cannot be read", c.stats.leftOut)
	}
	z := s2.NewWriter(w, s2.WriterBetterCompression(), s2.WriterConcurrency(1), s2.WriterBlockSize(blockBytes))
	p := packer{ctx: ctx, root: root, out: tar.NewWriter(z), whole: true}
	if err = p.all(now, c); err == nil {
		err = p.out.Close()
	}
	if err != nil {
		_ = z.Close() // what was written is of no use
		return err
	}
	return z.Close()
}

// Unpack puts what [Pack] wrote into an empty folder. It writes nothing outside of the
// folder, whatever the archive holds. Links in it may lead anywhere, so the caller must
// trust the archive before it follows one. It fails with [ErrCorrupt] if the archive is
// damaged, and with a [*LimitError] if it exceeds limits. After an error the folder has
// some of the files.
func Unpack(ctx context.Context, r io.Reader, folder string, limits Limits) error {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // every write has ended
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // only read
	limits = limits.withDefaults()
	bounded := &io.LimitedReader{R: s2.NewReader(reader{ctx, source{r}}, s2.ReaderMaxBlockSize(blockBytes)), N: limits.most()}
	u := wholeUnpacker{in: tar.NewReader(bounded), root: root, folder: int(dir.Fd()), buffer: make([]byte, 256<<10)}
	if err := u.all(ctx, limits); err != nil {
		return readError(ctx, err)
	}
	return ended(ctx, bounded)
}

// wholeUnpacker fills a folder that was empty. Links must come last in the archive, so
// the path of a file or folder never leads through a link.
type wholeUnpacker struct {
	in     *tar.Reader
	root   *os.Root
	folder int    // the descriptor of root
	umask  uint32 // takes permissions from new entries
	buffer []byte

	linked bool     // there was a link
	closed []closed // folders in the order of their making
}

// closed is a folder that gets its permissions once everything is written.
type closed struct {
	name string
	mode fs.FileMode
}

func (u *wholeUnpacker) all(ctx context.Context, limits Limits) error {
	if err := u.readUmask(); err != nil {
		return err
	}
	if err := entriesOf(ctx, u.in, wholeVersion, limits, u.entry); err != nil {
		return err
	}
	for _, c := range slices.Backward(u.closed) { // inner folders first: a closed folder cannot be entered
		if err := u.root.Chmod(c.name, c.mode); err != nil {
			return err
		}
	}
	return nil
}

// readUmask makes an entry with all permissions, and sees which of them are missing.
func (u *wholeUnpacker) readUmask() error {
	const name = ".umask"
	var made unix.Stat_t
	err := unix.Mkdirat(u.folder, name, 0o777)
	if err == nil {
		err = errors.Join(unix.Fstatat(u.folder, name, &made, 0), unix.Unlinkat(u.folder, name, unix.AT_REMOVEDIR))
	}
	u.umask = 0o777 &^ uint32(made.Mode)
	return at("mkdir", name, err)
}

func (u *wholeUnpacker) entry(name string, h *tar.Header) error {
	mode := uint32(h.Mode & 0o777)
	switch {
	case h.Typeflag == tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxName {
			return corrupt("link %q leads nowhere", name)
		}
		u.linked = true
		return u.root.Symlink(h.Linkname, name) // not by way of another link
	case u.linked:
		return corrupt("%q comes after a link", name)
	case h.Typeflag == tar.TypeDir:
		if mode&u.umask != 0 || mode|0o700 != mode {
			u.closed = append(u.closed, closed{name, fs.FileMode(mode)})
		}
		return at("mkdir", name, unix.Mkdirat(u.folder, name, mode|0o700))
	case h.Typeflag != tar.TypeReg:
		return corrupt("%q is neither file, folder nor link", name)
	}
	return u.file(name, mode, h)
}

// file makes a file. It does not use os.File, which would make two more system calls and
// three allocations for each of thousands of files.
func (u *wholeUnpacker) file(name string, mode uint32, h *tar.Header) error {
	fd, err := again(func() (int, error) {
		return unix.Openat(u.folder, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, mode|0o200)
	})
	if err != nil {
		return at("open", name, err)
	}
	for left := h.Size; left > 0 && err == nil; {
		some := u.buffer[:min(left, int64(len(u.buffer)))]
		left -= int64(len(some))
		if _, err = io.ReadFull(u.in, some); err == nil {
			err = at("write", name, write(fd, some))
		}
	}
	if err == nil && (mode&u.umask != 0 || mode|0o200 != mode) {
		err = at("chmod", name, unix.Fchmod(fd, mode))
	}
	return errors.Join(err, at("close", name, unix.Close(fd)))
}

// write writes all data.
func write(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := again(func() (int, error) { return unix.Write(fd, data) })
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// again repeats a system call that a signal has interrupted.
func again(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// at names the entry to which an error belongs.
func at(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}
