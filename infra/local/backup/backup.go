// Package backup copies the part of a data folder that must not be lost into one file, and
// restores it. Dormouse run may use the folder during the copy.
//
// The file is a gzipped tar archive. It has the files of the folder under their names: the
// store and the history (each a consistent copy, as SQLite's VACUUM INTO makes it), the secret,
// the usage, workspaces, alarms and certificates. It leaves out logs, sockets and installs, which
// dormouse creates again, and the saved memory of processes, so that those start afresh. Whoever can
// read the file has everything that clients have sent, and the secret that seals tokens.
package backup

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// databases are the files of a data folder that are copied with SQLite.
var databases = []string{"store.db", "history.db"}

// isLeft reports whether a file or folder at the top of a data folder belongs to no backup. A
// restore does not touch it either.
func isLeft(top string) bool {
	return slices.Contains([]string{"lock", "run", "logs", "home", "cache", "installs", "environments", "memory.key", "memory.key.lock"}, top) ||
		strings.HasPrefix(top, during) || strings.HasPrefix(top, before)
}

// Prefixes of folders in the data folder.
const (
	during = "backup-"         // for temporary files of a backup or a restore
	before = "before-restore-" // for the files that a restore has replaced
)

// Summary counts what a backup contains, or what was restored.
type Summary struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"` // size of the files, uncompressed
	// Unread are the files and folders that the backup lacks because they could not be read, each
	// with the reason.
	Unread []string `json:"unread,omitempty"`
	// Disowned is how many restored files and folders belong to this user now, and belonged to
	// another before.
	Disowned int `json:"disowned,omitempty"`
}

// Write writes a backup of the data folder to w. The argument store is the path of the store's
// file, or "" if the store is not a file.
func Write(ctx context.Context, folder, store string, w io.Writer) (s Summary, err error) {
	packed := gzip.NewWriter(w)
	a := &archive{ctx: ctx, out: tar.NewWriter(packed)}
	defer func() { s, err = a.Summary, cmp.Or(err, a.out.Close(), packed.Close()) }()
	copies, err := os.MkdirTemp(folder, during)
	if err != nil {
		return s, err
	}
	defer func() { _ = os.RemoveAll(copies) }()
	for _, name := range databases {
		path := filepath.Join(folder, name)
		if name == "store.db" {
			path = store
		}
		if path == "" {
			continue
		}
		if err := a.database(name, path, filepath.Join(copies, name)); err != nil {
			return s, err
		}
	}
	// The store is copied before the files: it refers to files, and a file is always written
	// before the store refers to it.
	root, err := os.OpenRoot(folder)
	if err != nil {
		return s, err
	}
	defer func() { _ = root.Close() }()
	return s, a.folder(root, "")
}

// archive is a backup that is being written.
type archive struct {
	Summary
	ctx context.Context
	out *tar.Writer
}

// database adds a copy of the database at path. The argument part is the path of a temporary file
// for the copy.
func (a *archive) database(name, path, part string) error {
	if err := sqlitestore.Copy(a.ctx, path, part); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	f, err := os.Open(part)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	own, err := os.Stat(path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	head := headOf(name, info)
	head.Uid, head.Gid = ownerOf(own)
	return a.content(head, f)
}

// folder adds the content of a folder. During the backup, a server may replace a file or folder by
// a link to a file that the server itself may not read. So folder opens everything through root, and
// drops what it has opened by a link; see isStill.
func (a *archive) folder(root *os.Root, under string) error {
	list, err := root.Open(".")
	if err != nil {
		return a.lacks(under, err)
	}
	entries, err := list.ReadDir(-1)
	_ = list.Close() // nothing was written to it
	if err != nil {
		return a.lacks(under, err)
	}
	for _, e := range entries {
		name := under + e.Name()
		switch {
		case a.ctx.Err() != nil:
			return a.ctx.Err()
		case under == "" && (isLeft(name) || isDatabase(name)), strings.HasSuffix(name, ".new"), strings.Contains(name, ".damaged-"), snapshot.IsImage(name):
		case e.IsDir():
			err = a.enter(root, e.Name(), name)
		case e.Type().IsRegular():
			err = a.file(root, e.Name(), name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// enter adds a folder and its content.
func (a *archive) enter(root *os.Root, base, name string) error {
	below, err := root.OpenRoot(base)
	if err != nil {
		if now, gone := root.Lstat(base); gone != nil || !now.IsDir() {
			return nil //nolint:nilerr // another program has removed or replaced the folder
		}
		return a.lacks(name, err)
	}
	defer func() { _ = below.Close() }()
	info, err := below.Stat(".")
	if err != nil || !isStill(root, base, info) {
		return a.lacks(name, err)
	}
	head := headOf(name+"/", info)
	head.Typeflag = tar.TypeDir
	if err := a.out.WriteHeader(head); err != nil {
		return err
	}
	return a.folder(below, name+"/")
}

// file adds a file. It opens the file without blocking, in case it was replaced by a pipe.
func (a *archive) file(root *os.Root, base, name string) error {
	f, err := root.OpenFile(base, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if now, gone := root.Lstat(base); gone != nil || !now.Mode().IsRegular() {
			return nil //nolint:nilerr // another program has removed or replaced the file
		}
		return a.lacks(name, err)
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || !isStill(root, base, info) {
		return a.lacks(name, err)
	}
	return a.content(headOf(name, info), f)
}

// isStill reports whether the opened file or folder still has the name base in root. A link with
// this name does not count.
func isStill(root *os.Root, base string, opened fs.FileInfo) bool {
	now, err := root.Lstat(base)
	return err == nil && os.SameFile(now, opened)
}

// lacks records that a file or folder could not be read, unless it was removed meanwhile. The
// result is nil, so that the backup goes on. For the secret, and for the data folder itself, the
// result is err, because nothing could be restored without them.
func (a *archive) lacks(name string, err error) error {
	var link *fs.PathError
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return nil
	case name == "", name == datafolder.SecretFile:
		return err
	case errors.As(err, &link):
		err = link.Err
	}
	a.Unread = append(a.Unread, fmt.Sprintf("%s: %v", name, err))
	return nil
}

// headOf returns the tar header of a file or folder.
func headOf(name string, info fs.FileInfo) *tar.Header {
	head := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}
	if info.Mode().IsRegular() {
		head.Size = info.Size()
	}
	head.Uid, head.Gid = ownerOf(info)
	return head
}

func ownerOf(info fs.FileInfo) (uid, gid int) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid), int(st.Gid)
	}
	return os.Getuid(), os.Getgid()
}

// isDatabase reports whether a file at the top of the data folder belongs to one of the databases.
func isDatabase(name string) bool {
	return slices.ContainsFunc(databases, func(db string) bool {
		return name == db || strings.HasPrefix(name, db+"-") || name == db+sqlitestore.MarkEnding
	})
}

// content adds a file with exactly the size in its header. It cuts off a file that has grown, and
// fills up with zeros one that has shrunk or cannot be read to its end.
func (a *archive) content(head *tar.Header, f io.Reader) error {
	if err := a.out.WriteHeader(head); err != nil {
		return err
	}
	from := &source{Reader: f}
	n, err := io.Copy(a.out, io.LimitReader(from, head.Size))
	if err == nil || from.err != nil {
		_, err = io.CopyN(a.out, zeros{}, head.Size-n)
	}
	if err != nil {
		return err
	}
	a.Files, a.Bytes = a.Files+1, a.Bytes+head.Size
	return a.lacks(head.Name, from.err)
}

// source is a reader that remembers its error, to tell it from an error of writing.
type source struct {
	io.Reader
	err error
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Read restores a backup into a data folder that no dormouse run may use. It checks the backup
// before it changes anything. The result kept is the folder that now has the previous files, or ""
// if nothing was changed.
func Read(ctx context.Context, folder string, r io.Reader) (s Summary, kept string, err error) {
	f, err := datafolder.Open(folder) // locks the folder for this program
	if err != nil {
		f.Close()
		return s, "", err
	}
	defer f.Close()
	unpacked, err := os.MkdirTemp(f.Path, during)
	if err != nil {
		return s, "", err
	}
	defer func() { _ = os.RemoveAll(unpacked) }()
	s, err = unpack(unpacked, r)
	if _, disk := errors.AsType[*fs.PathError](err); disk {
		return s, "", fmt.Errorf("the backup cannot be unpacked; nothing was changed: %w", err)
	}
	if err != nil {
		return s, "", fmt.Errorf("the file is no backup of dormouse, or is cut off; nothing was changed: %w", err)
	}
	if _, err := os.Stat(filepath.Join(unpacked, datafolder.SecretFile)); err != nil {
		return s, "", errors.New("the file has no secret, so it is no backup of dormouse; nothing was changed")
	}
	if err := sqlitestore.Check(ctx, filepath.Join(unpacked, "store.db")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, "", fmt.Errorf("the copy of the store cannot be used; nothing was changed: %w", err)
	}
	kept = f.File(before + time.Now().UTC().Format("20060102-150405"))
	if err := move(f.Path, kept); err != nil {
		return s, kept, err
	}
	return s, kept, move(unpacked, f.Path)
}

// unpack writes the files of a backup below a folder.
func unpack(folder string, r io.Reader) (s Summary, err error) {
	plain, err := gzip.NewReader(r)
	if err != nil {
		return s, err
	}
	var folders []*tar.Header // their modes are set last, because one may forbid this user to write
	for in := tar.NewReader(plain); ; {
		head, err := in.Next()
		if errors.Is(err, io.EOF) {
			for _, f := range slices.Backward(folders) {
				if err := os.Chmod(filepath.Join(folder, filepath.FromSlash(f.Name)), os.FileMode(f.Mode).Perm()); err != nil { //nolint:gosec // Perm keeps 9 bits only
					return s, err
				}
			}
			return s, nil
		}
		if err != nil {
			return s, err
		}
		name := filepath.FromSlash(strings.TrimSuffix(head.Name, "/"))
		if !filepath.IsLocal(name) || head.Typeflag != tar.TypeReg && head.Typeflag != tar.TypeDir {
			return s, fmt.Errorf("it has %q, which no backup has", head.Name)
		}
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return s, err
		}
		if head.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o700)
			folders = append(folders, head)
		} else {
			err = unpackFile(path, head, in)
			s.Files, s.Bytes = s.Files+1, s.Bytes+head.Size
		}
		if err != nil {
			return s, err
		}
		own, err := give(path, head)
		if err != nil {
			return s, err
		}
		if !own {
			s.Disowned++
		}
	}
}

func unpackFile(path string, head *tar.Header, in io.Reader) error {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, os.FileMode(head.Mode).Perm()) //nolint:gosec // Perm keeps 9 bits only
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in) //nolint:gosec // the operator made the backup, so its size is no attack
	return errors.Join(err, out.Sync(), out.Close(), os.Chtimes(path, time.Time{}, head.ModTime))
}

// give gives a file or folder to its owner in the backup. The result own is false if only root may
// do that.
func give(path string, head *tar.Header) (own bool, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return false, err
	}
	if uid, gid := ownerOf(info); uid == head.Uid && gid == head.Gid {
		return true, nil
	}
	err = os.Lchown(path, head.Uid, head.Gid)
	if errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	return true, err
}

// move moves everything that belongs to a backup from one folder to another.
func move(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if isLeft(name) {
			continue
		}
		if err := os.Rename(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}
