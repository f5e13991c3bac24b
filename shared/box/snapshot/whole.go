package snapshot

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Pack writes a whole folder to w, in the form of a snapshot. Unlike a snapshot it has
// all names, links that lead out of the folder, and files with another name outside. It
// fails with a [*LimitError] if the folder exceeds limits, and if something changes the
// folder meanwhile. An entry that cannot be read is an error too.
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
	return pack(ctx, w, root, now, c)
}

// fresh puts one entry into a folder that was empty. Links come last, so no part of a path
// is one, and no check of it is needed. An install has thousands of files, and with these
// checks most of the time of unpacking would be theirs.
func (u *unpacker) fresh(name string, h *tar.Header) error {
	path, mode := filepath.Join(u.root.Name(), name), fs.FileMode(h.Mode)&fs.ModePerm
	if h.Typeflag == tar.TypeSymlink {
		if h.Linkname == "" || len(h.Linkname) > maxName {
			return corrupt("link %q leads nowhere", name)
		}
		u.linked = true
		return u.root.Symlink(h.Linkname, name) // not by way of another link
	}
	switch {
	case u.linked:
		return corrupt("%q comes after a link", name)
	case h.Typeflag == tar.TypeDir:
		u.modes[name] = mode
		return os.Mkdir(path, mode|0o700)
	case h.Typeflag != tar.TypeReg:
		return corrupt("%q is neither file, folder nor link", name)
	}
	if u.bytes += h.Size; u.bytes > u.limits.Bytes {
		return &LimitError{Bytes: u.bytes, MaxBytes: u.limits.Bytes, Files: u.entries, MaxFiles: u.limits.Files, Largest: name}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode|0o200)
	if err != nil {
		return err
	}
	// Without ReadFrom, which would make a buffer for each file.
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, u.in, u.buffer)
	if err == nil && u.masked(f, mode) {
		err = f.Chmod(mode)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		_ = os.Chtimes(path, h.ModTime, h.ModTime) // fails for a time that the file system cannot store
	}
	return err
}

// masked reports whether the umask takes permissions from new files of a mode. The first
// file of the mode shows it.
func (u *unpacker) masked(f *os.File, mode fs.FileMode) bool {
	known, ok := u.masks[mode]
	if !ok {
		info, err := f.Stat()
		known = err != nil || info.Mode().Perm() != mode
		u.masks[mode] = known
	}
	return known
}

// Unpack puts what [Pack] wrote into an empty folder. It writes nothing outside of the
// folder, whatever the archive holds; links in it may lead anywhere, so the caller must
// trust the archive before it follows one. It fails with [ErrCorrupt] if the archive is
// damaged, and with a [*LimitError] if it exceeds limits. After an error the folder has
// some of the files.
func Unpack(ctx context.Context, r io.Reader, folder string, limits Limits) error {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // every write has ended
	return unpackAs(ctx, source{r}, root, limits.withDefaults(), true)
}
