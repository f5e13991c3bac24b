package snapshot

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// unpack unpacks the archive of a workspace into an empty folder in which no process works, and
// returns what is in the archive. After an error the folder contains some of the files.
//
// unpack does not trust the archive: it writes nothing outside of the folder, and refuses
// everything that pack does not write.
func unpack(ctx context.Context, r io.Reader, folder string, limits Limits) (changes, error) {
	z, err := zstd.NewReader(reader{ctx, source{r}}, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return changes{}, err
	}
	defer z.Close()
	u := unpacker{found: changes{put: tree{}}}
	err = u.all(ctx, z, folder, limits)
	return u.found, err
}

// Unpack unpacks an archive of [Pack] into an empty folder. Unpack writes nothing outside of the
// folder, whatever the archive contains. Links may lead anywhere, so the caller must trust the
// archive before it follows a link. Unpack fails with [ErrCorrupt] if the archive is damaged, and
// with a [*LimitError] if it exceeds limits. After an error the folder contains some of the files.
func Unpack(ctx context.Context, r io.Reader, folder string, limits Limits) error {
	z := s2.NewReader(reader{ctx, source{r}}, s2.ReaderMaxBlockSize(blockBytes))
	return (&unpacker{whole: true}).all(ctx, z, folder, limits.withDefaults())
}

// unpacker fills an empty folder. Links come last, so that the path of a file or folder never
// leads through a link.
type unpacker struct {
	in     *tar.Reader
	root   *os.Root
	folder int    // the file descriptor of root
	umask  uint32 // permissions that the kernel removes from new entries
	buffer []byte
	whole  bool // reads the archive of a whole folder, see [Pack]

	found  changes  // the changes that the archive of a workspace lists
	links  []string // links that were made so far
	closed []closed // folders whose permissions are still to be set, in the order in which they were made
}

// closed is a folder that gets its permissions after everything is written.
type closed struct {
	name string
	mode fs.FileMode
}

func (u *unpacker) all(ctx context.Context, z io.Reader, folder string, limits Limits) error {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // all writes have ended
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // nothing was written through it
	bounded := &io.LimitedReader{R: z, N: limits.most()}
	u.in, u.root, u.folder, u.buffer = tar.NewReader(bounded), root, int(dir.Fd()), make([]byte, 256<<10)
	if err := u.untar(ctx, limits); err != nil {
		return readError(ctx, err)
	}
	return ended(ctx, bounded)
}

// most returns the largest size of an archive within the limits, before compression, with headers
// and padding.
func (l Limits) most() int64 { return l.Bytes + int64(l.Files+1)*(4*maxName+8<<10) }

// ended reads an archive to its end, where the checksums are. Only zeros may come before the end.
func ended(ctx context.Context, r *io.LimitedReader) error {
	rest := make([]byte, 4<<10)
	for {
		n, err := r.Read(rest)
		if slices.ContainsFunc(rest[:n], func(b byte) bool { return b != 0 }) {
			return corrupt("there is something behind its end")
		}
		if errors.Is(err, io.EOF) && r.N > 0 {
			return nil
		}
		if err != nil {
			return readError(ctx, err)
		}
	}
}

// readError wraps err as [ErrCorrupt], unless it comes from the context, the store, the disk or a
// limit.
func readError(ctx context.Context, err error) error {
	var place *fs.PathError
	var link *os.LinkError
	var limit *LimitError
	var source *sourceError
	if ctx.Err() != nil || errors.Is(err, ErrCorrupt) || errors.As(err, &place) || errors.As(err, &link) || errors.As(err, &limit) || errors.As(err, &source) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

// sourceError wraps an error of the store from which a snapshot is read.
type sourceError struct{ error }

func (e *sourceError) Unwrap() error { return e.error }

// source is a reader that wraps errors of the store as sourceError.
type source struct{ r io.Reader }

func (s source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		err = &sourceError{err}
	}
	return n, err
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// untar reads the uncompressed archive, and checks the limits and the number of entries.
func (u *unpacker) untar(ctx context.Context, limits Limits) error {
	if err := u.readUmask(); err != nil {
		return err
	}
	want, err := u.begin(limits)
	if err != nil {
		return err
	}
	entries, bytes := 0, int64(0)
	for {
		h, err := u.in.Next()
		switch {
		case errors.Is(err, io.EOF) && entries != want:
			return corrupt("it has %d entries of %d", entries, want)
		case errors.Is(err, io.EOF):
			return u.finish()
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if entries++; entries > limits.Files {
			return &LimitError{Files: entries, MaxFiles: limits.Files, MaxBytes: limits.Bytes}
		}
		name := h.Name
		if h.Typeflag == tar.TypeDir {
			name = strings.TrimSuffix(name, "/")
		}
		if !fine(name) || !u.whole && Skipped(name) {
			return corrupt("it names %q", h.Name)
		}
		if h.Typeflag == tar.TypeReg {
			bytes += h.Size
		}
		if bytes > limits.Bytes {
			return &LimitError{Bytes: bytes, MaxBytes: limits.Bytes, Files: entries, MaxFiles: limits.Files, Largest: name}
		}
		if err := u.entry(name, h); err != nil {
			return err
		}
	}
}

// begin reads the global header of an archive, and returns the number of entries.
func (u *unpacker) begin(limits Limits) (int, error) {
	of := version
	if u.whole {
		of = wholeVersion
	}
	h, err := u.in.Next()
	if errors.Is(err, io.EOF) {
		return 0, corrupt("it is empty")
	}
	if err != nil {
		return 0, err
	}
	if h.Typeflag != tar.TypeXGlobalHeader || h.PAXRecords[recordVersion] != of {
		return 0, corrupt("it is not of a form this runner knows")
	}
	n, err := strconv.Atoi(h.PAXRecords[recordEntries])
	if err != nil || n < 0 {
		return 0, corrupt("it does not say how many entries it has")
	}
	if n > limits.Files {
		return 0, &LimitError{Files: n, MaxFiles: limits.Files, MaxBytes: limits.Bytes}
	}
	return n, nil
}

// readUmask finds out the umask: it makes a folder with all permissions, and checks which of them
// are missing.
func (u *unpacker) readUmask() error {
	const name = ".umask"
	var made unix.Stat_t
	err := unix.Mkdirat(u.folder, name, 0o777)
	if err == nil {
		err = errors.Join(unix.Fstatat(u.folder, name, &made, 0), unix.Unlinkat(u.folder, name, unix.AT_REMOVEDIR))
	}
	u.umask = 0o777 &^ uint32(made.Mode)
	return at("mkdir", name, err)
}

func (u *unpacker) entry(name string, h *tar.Header) error {
	if _, gone := h.PAXRecords[recordGone]; gone && !u.whole && h.Typeflag == tar.TypeReg && h.Size == 0 {
		u.found.gone = append(u.found.gone, name)
		return nil
	}
	mode := uint32(h.Mode & 0o777)
	seen := entry{State: State{Mode: fs.FileMode(mode)}}
	var err error
	switch {
	case h.Typeflag == tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxName || !u.whole && !local(name, h.Linkname) {
			return corrupt("link %q leads nowhere, or out of the workspace", name)
		}
		u.links = append(u.links, name)
		seen.Mode, seen.Link = fs.ModeSymlink, h.Linkname
		err = u.inside(name, func() error { return u.root.Symlink(h.Linkname, name) }) // root makes this fail if an earlier link leads out of the workspace
	case len(u.links) > 0:
		return corrupt("%q comes after a link", name)
	case h.Typeflag == tar.TypeDir:
		if mode&u.umask != 0 || mode|0o700 != mode {
			u.closed = append(u.closed, closed{name, fs.FileMode(mode)})
		}
		seen.Mode |= fs.ModeDir
		err = u.inside(name, func() error { return at("mkdir", name, unix.Mkdirat(u.folder, name, mode|0o700)) })
	case h.Typeflag == tar.TypeReg:
		seen.Size, seen.Time = h.Size, h.ModTime
		err = u.file(name, mode, h)
	default:
		return corrupt("%q is neither file, folder nor link", name)
	}
	if err == nil && !u.whole {
		u.found.put[name] = seen
	}
	return err
}

// inside calls the function makeEntry. The archive of a workspace may lack the folder of an entry: if
// makeEntry fails for that reason, inside makes the folder and calls makeEntry again.
func (u *unpacker) inside(name string, makeEntry func() error) error {
	err := makeEntry()
	if errors.Is(err, fs.ErrNotExist) && !u.whole {
		if err = u.root.MkdirAll(path.Dir(name), 0o755); err == nil {
			err = makeEntry()
		}
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTDIR) {
		return corrupt("%q is in the way of another entry, or is one", name)
	}
	return err
}

// file makes a file, without os.File, which takes two more system calls and three allocations for
// each of thousands of files.
func (u *unpacker) file(name string, mode uint32, h *tar.Header) error {
	fd := 0
	err := u.inside(name, func() (err error) {
		fd, err = again(func() (int, error) {
			return unix.Openat(u.folder, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, mode|0o200)
		})
		return at("open", name, err)
	})
	if err != nil {
		return err
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
	if err = errors.Join(err, at("close", name, unix.Close(fd))); err == nil && !u.whole {
		_ = u.root.Chtimes(name, h.ModTime, h.ModTime) // fails if the file system cannot store such a time
	}
	return err
}

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

// again repeats a system call as long as a signal interrupts it.
func again(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func at(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// fine reports whether pack can have written this name. fs.ValidPath cannot be used, because it
// refuses names that are not UTF-8.
func fine(name string) bool {
	return name != "" && name != "." && len(name) <= maxName && path.Clean(name) == name && !path.IsAbs(name) &&
		name != ".." && !strings.HasPrefix(name, "../") && !strings.Contains(name, "\x00")
}

// finish checks the links, which is possible only when all entries exist, and sets the permissions
// of folders.
func (u *unpacker) finish() error {
	for _, name := range u.links {
		to, err := u.root.Readlink(name)
		if !u.whole && err == nil && leavesOut(u.root, name, to) {
			return corrupt("link %q leads out of the workspace by way of others", name)
		}
	}
	for _, c := range slices.Backward(u.closed) { // inner folders first, because a folder without permissions cannot be entered
		if err := u.root.Chmod(c.name, c.mode); err != nil {
			return err
		}
	}
	return nil
}
