package snapshot

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// unpack puts an archive into a workspace in which no process works. After an error the
// workspace is a mix of old and new.
//
// unpack does not trust the archive: it touches nothing outside of root, and refuses
// everything that pack does not write.
func unpack(ctx context.Context, r io.Reader, root *os.Root, limits Limits) error {
	z, err := zstd.NewReader(reader{ctx, r}, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return err
	}
	defer z.Close()
	bounded := &io.LimitedReader{R: z, N: limits.most()}
	if err := untar(ctx, bounded, root, limits); err != nil {
		return readError(ctx, err)
	}
	return ended(ctx, bounded)
}

// most returns how many bytes an archive has at most, with headers and padding.
func (l Limits) most() int64 { return l.Bytes + int64(l.Files+1)*(4*maxName+8<<10) }

// ended reads an archive to its end, where checksums are. Only zeros may come before the
// end.
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

// readError marks err as [ErrCorrupt] unless it comes from the context, the store, the
// disk or a limit.
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

// sourceError is an error of the store while its snapshot is read.
type sourceError struct{ error }

// Unwrap returns the error of the store.
func (e *sourceError) Unwrap() error { return e.error }

// source is a reader that marks the errors of a store.
type source struct{ r io.Reader }

// Read implements io.Reader.
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

// untar reads the archive below the compression.
func untar(ctx context.Context, r io.Reader, root *os.Root, limits Limits) error {
	u := unpacker{in: tar.NewReader(r), root: root, modes: map[string]fs.FileMode{}}
	if err := entriesOf(ctx, u.in, version, limits, u.entry); err != nil {
		return err
	}
	return u.finish()
}

// entriesOf reads an archive, and hands each entry to unpack, with its clean name. It checks
// the limits, and that the archive has as many entries as it says.
func entriesOf(ctx context.Context, in *tar.Reader, version string, limits Limits, unpack func(name string, h *tar.Header) error) error {
	want, err := begin(in, version, limits)
	if err != nil {
		return err
	}
	entries, bytes := 0, int64(0)
	for {
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF) && entries != want:
			return corrupt("it has %d entries of %d", entries, want)
		case errors.Is(err, io.EOF):
			return nil
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
		if !fine(name) {
			return corrupt("it names %q", h.Name)
		}
		if h.Typeflag == tar.TypeReg {
			bytes += h.Size
		}
		if bytes > limits.Bytes {
			return &LimitError{Bytes: bytes, MaxBytes: limits.Bytes, Files: entries, MaxFiles: limits.Files, Largest: name}
		}
		if err := unpack(name, h); err != nil {
			return err
		}
	}
}

type unpacker struct {
	in    *tar.Reader
	root  *os.Root
	modes map[string]fs.FileMode // modes of folders, set after everything is written
	links []string
}

// begin reads the global header of an archive, and returns the number of entries.
func begin(in *tar.Reader, version string, limits Limits) (int, error) {
	h, err := in.Next()
	if errors.Is(err, io.EOF) {
		return 0, corrupt("it is empty")
	}
	if err != nil {
		return 0, err
	}
	if h.Typeflag != tar.TypeXGlobalHeader || h.PAXRecords[recordVersion] != version {
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

func (u *unpacker) entry(name string, h *tar.Header) error {
	if skipped(name) {
		return corrupt("it names %q", h.Name)
	}
	_, gone := h.PAXRecords[recordGone]
	switch {
	case gone && h.Typeflag == tar.TypeReg && h.Size == 0:
		return u.remove(name)
	case h.Typeflag == tar.TypeReg:
		return u.file(name, h)
	case h.Typeflag == tar.TypeDir:
		return u.folder(name, h)
	case h.Typeflag == tar.TypeSymlink:
		return u.link(name, h.Linkname)
	default:
		return corrupt("%q is neither file, folder nor link", name)
	}
}

// fine reports whether pack could have written a name. fs.ValidPath would refuse names
// that are not UTF-8, but files may have such names.
func fine(name string) bool {
	return name != "" && name != "." && len(name) <= maxName && path.Clean(name) == name && !path.IsAbs(name) &&
		name != ".." && !strings.HasPrefix(name, "../") && !strings.Contains(name, "\x00")
}

// remove removes an entry that the process had removed. A folder with new contents
// stays.
func (u *unpacker) remove(name string) error {
	if !u.reached(name) {
		return nil
	}
	err := u.root.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if info, lerr := u.root.Lstat(name); lerr == nil && info.IsDir() {
		return nil
	}
	return err
}

// reached reports whether everything above a name is a folder.
func (u *unpacker) reached(name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if info, err := u.root.Lstat(dir); err != nil || !info.IsDir() {
			return false
		}
	}
	return true
}

// above makes everything above a name a writable folder.
func (u *unpacker) above(name string) error {
	if u.reached(name) {
		return nil
	}
	dirs := strings.Split(path.Dir(name), "/")
	for i := range dirs {
		if err := u.makeFolder(path.Join(dirs[:i+1]...)); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) makeFolder(name string) error {
	info, err := u.root.Lstat(name)
	if err == nil && info.IsDir() {
		return nil
	}
	if err == nil {
		err = u.root.Remove(name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return u.root.Mkdir(name, 0o755)
}

func (u *unpacker) folder(name string, h *tar.Header) error {
	err := u.above(name)
	if err == nil {
		err = u.makeFolder(name)
	}
	if err != nil {
		return err
	}
	u.modes[name] = fs.FileMode(h.Mode) & fs.ModePerm
	return u.root.Chmod(name, u.modes[name]|0o700)
}

func (u *unpacker) file(name string, h *tar.Header) (err error) {
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, u.in); err != nil {
		return err
	}
	if err := f.Chmod(fs.FileMode(h.Mode) & fs.ModePerm); err != nil {
		return err
	}
	// This fails for a time that the file system cannot store.
	_ = u.root.Chtimes(name, h.ModTime, h.ModTime)
	return nil
}

// clear makes room for a file or link by removing an entry.
func (u *unpacker) clear(name string) error {
	if err := u.above(name); err != nil {
		return err
	}
	return u.root.RemoveAll(name)
}

func (u *unpacker) link(name, to string) error {
	if !local(name, to) || len(to) > maxName {
		return corrupt("link %q leads out of the workspace", name)
	}
	if err := u.clear(name); err != nil {
		return err
	}
	u.links = append(u.links, name)
	return u.root.Symlink(to, name)
}

// finish makes the checks that need the whole workspace, and sets the modes of folders.
func (u *unpacker) finish() error {
	for _, name := range u.links {
		to, err := u.root.Readlink(name)
		if err == nil && leavesOut(u.root, name, to) {
			return corrupt("link %q leads out of the workspace by way of others", name)
		}
	}
	folders := slices.Sorted(maps.Keys(u.modes))
	slices.Reverse(folders) // inner folders first: a closed folder cannot be entered
	for _, name := range folders {
		// A later entry may have put a link in the place of the folder.
		if info, err := u.root.Lstat(name); err != nil || !info.IsDir() || u.modes[name]|0o700 == u.modes[name] {
			continue
		}
		if err := u.root.Chmod(name, u.modes[name]); err != nil {
			return err
		}
	}
	return nil
}
