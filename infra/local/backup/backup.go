// Package backup copies what a data folder must not lose into one file, also while dormouse
// run uses the folder, and brings it back.
//
// The file is a gzipped tar archive with the files of the folder below their names: the
// store and the history (each a whole copy, as SQLite's VACUUM INTO makes it), the secret,
// the usage, workspaces, alarms and certificates. Logs, sockets and installs are not in it:
// they come again by themselves. Its reader gets everything that clients have sent, and the
// secret that seals tokens.
package backup

import (
	"archive/tar"
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

// databases are the files of a data folder that SQLite copies.
var databases = []string{"store.db", "history.db"}

// isLeft reports whether a name at the top of a data folder is in no backup, and stays in its
// place when one is restored.
func isLeft(top string) bool {
	return slices.Contains([]string{"lock", "run", "logs", "home", "installs", "environments", "memory.key", "memory.key.lock"}, top) ||
		strings.HasPrefix(top, during) || strings.HasPrefix(top, before)
}

// during and before begin the names of folders: what a backup or a restore works in, and what
// keeps the files that a restore has replaced.
const (
	during = "backup-"
	before = "before-restore-"
)

// Summary says what a backup has, or what was restored.
type Summary struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"` // of the files, unpacked
	// Unread are the files and folders that could not be read, so a backup lacks them, each
	// with the reason.
	Unread []string `json:"unread,omitempty"`
	// Disowned is how many restored files and folders have this user as their owner, and had
	// another: only root may give files away.
	Disowned int `json:"disowned,omitempty"`
}

// Write copies the data folder to w. store is the path of the store, "" if the sessions are
// not in a file.
func Write(ctx context.Context, folder, store string, w io.Writer) (s Summary, err error) {
	packed := gzip.NewWriter(w)
	a := &archive{ctx: ctx, out: tar.NewWriter(packed)}
	defer func() { s, err = a.Summary, errors.Join(err, a.out.Close(), packed.Close()) }()
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
	// The files come after the store: it names them, and they are written before it.
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

// database adds a copy of a database, which it makes at part.
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
	defer func() { _ = f.Close() }() // only read: nothing can be lost
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

// folder adds the files and folders of a folder. A server may exchange them meanwhile, to get
// a file into its workspace that it cannot read itself. So folder enters each folder by its
// handle. It takes what it opened only if that still has its name and is no link. The rest
// counts as removed.
func (a *archive) folder(at *os.Root, under string) error {
	list, err := at.Open(".")
	if err != nil {
		return a.lacks(under, err)
	}
	entries, err := list.ReadDir(-1)
	_ = list.Close() // only read: nothing can be lost
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
			err = a.enter(at, e.Name(), name)
		case e.Type().IsRegular():
			err = a.file(at, e.Name(), name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// enter adds a folder and what it has.
func (a *archive) enter(at *os.Root, base, name string) error {
	below, err := at.OpenRoot(base)
	if err != nil {
		if now, gone := at.Lstat(base); gone != nil || !now.IsDir() {
			return nil //nolint:nilerr // another program has removed or replaced the folder
		}
		return a.lacks(name, err)
	}
	defer func() { _ = below.Close() }()
	info, err := below.Stat(".")
	if err != nil || !isStill(at, base, info) {
		return a.lacks(name, err)
	}
	head := headOf(name+"/", info)
	head.Typeflag = tar.TypeDir
	if err := a.out.WriteHeader(head); err != nil {
		return err
	}
	return a.folder(below, name+"/")
}

// file adds a file. A pipe in its place does not hold up the backup.
func (a *archive) file(at *os.Root, base, name string) error {
	f, err := at.OpenFile(base, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if now, gone := at.Lstat(base); gone != nil || !now.Mode().IsRegular() {
			return nil //nolint:nilerr // it is something else by now
		}
		return a.lacks(name, err)
	}
	defer func() { _ = f.Close() }() // only read: nothing can be lost
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || !isStill(at, base, info) {
		return a.lacks(name, err)
	}
	return a.content(headOf(name, info), f)
}

// isStill reports whether what was opened has this name in the folder and is no link.
func isStill(at *os.Root, base string, opened fs.FileInfo) bool {
	now, err := at.Lstat(base)
	return err == nil && os.SameFile(now, opened)
}

// lacks notes that a file or folder cannot be read, and returns nil, so that the backup goes on. One
// that was removed meanwhile is not noted. Without the secret nothing could be restored, so for that
// file lacks returns err.
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

// headOf returns the header of a file or folder.
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

// isDatabase reports whether a file belongs to a database, which is copied in another way.
func isDatabase(name string) bool {
	return slices.ContainsFunc(databases, func(db string) bool {
		return name == db || strings.HasPrefix(name, db+"-") || name == db+sqlitestore.MarkEnding
	})
}

// content adds exactly the size that the header promises: a file that grows meanwhile is cut,
// and one that shrinks or cannot be read to its end ends in zeros.
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

// source is a reader that remembers its error, so that a copy tells errors of reading from those of
// writing.
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

// Read brings a backup back into a data folder, which no dormouse run may use. It checks the
// copy before it changes anything. kept is the folder with what was there, "" for nothing.
func Read(ctx context.Context, folder string, r io.Reader) (s Summary, kept string, err error) {
	f, err := datafolder.Open(folder) // nobody else may use it meanwhile
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
	if s, err = unpack(unpacked, r); err != nil {
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
	var folders []*tar.Header // their modes come last: one may forbid this user to write
	for in := tar.NewReader(plain); ; {
		head, err := in.Next()
		if errors.Is(err, io.EOF) {
			for _, f := range slices.Backward(folders) {
				if err := os.Chmod(filepath.Join(folder, filepath.FromSlash(f.Name)), os.FileMode(f.Mode).Perm()); err != nil { //nolint:gosec // Perm bounds it
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
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, os.FileMode(head.Mode).Perm()) //nolint:gosec // Perm bounds it
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in) //nolint:gosec // the operator's own file may be as large as it is
	return errors.Join(err, out.Sync(), out.Close(), os.Chtimes(path, time.Time{}, head.ModTime))
}

// give gives a file or folder to the owner that it had. It returns false where only root may.
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

// move moves all that a backup may have from one folder to another.
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
