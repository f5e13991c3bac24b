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
	"github.com/dormouse-mcp/dormouse/shared/sqlitestore"
)

// databases are the files of a data folder that SQLite copies.
var databases = []string{"store.db", "history.db"}

// isLeft reports whether a name at the top of a data folder is in no backup, and stays in its
// place when one is restored.
func isLeft(top string) bool {
	return slices.Contains([]string{"lock", "run", "logs", "home", "installs", "environments"}, top) ||
		strings.HasPrefix(top, during) || strings.HasPrefix(top, before)
}

// during and before begin the names of folders: what a backup or a restore works in, and what
// keeps the files that a restore has replaced.
const (
	during = "backup-"
	before = "before-restore-"
)

// Summary says what a backup has.
type Summary struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"` // of the files, unpacked
}

// Write copies the data folder to w. store is the path of the store, "" if the sessions are
// not in a file.
func Write(ctx context.Context, folder, store string, w io.Writer) (s Summary, err error) {
	packed := gzip.NewWriter(w)
	out := tar.NewWriter(packed)
	defer func() { err = errors.Join(err, out.Close(), packed.Close()) }()
	copies, err := os.MkdirTemp(folder, during)
	if err != nil {
		return s, err
	}
	defer func() { _ = os.RemoveAll(copies) }()
	add := func(name, path string) error {
		n, err := addFile(out, name, path)
		if err == nil {
			s.Files, s.Bytes = s.Files+1, s.Bytes+n
		}
		return err
	}
	for _, name := range databases {
		path := filepath.Join(folder, name)
		if name == "store.db" {
			path = store
		}
		if path == "" {
			continue
		}
		part := filepath.Join(copies, name)
		if err := sqlitestore.Copy(ctx, path, part); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return s, err
		}
		if err := add(name, part); err != nil {
			return s, err
		}
	}
	// The files come after the store: it names them, and they are written before it.
	err = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		name, relErr := filepath.Rel(folder, path)
		switch top, _, _ := strings.Cut(name, string(filepath.Separator)); {
		case errors.Is(err, fs.ErrNotExist): // it was removed just now
			return nil
		case err != nil || relErr != nil:
			return errors.Join(err, relErr)
		case name == ".":
			return nil
		case isLeft(top):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular() || isDatabase(name) || strings.HasSuffix(name, ".new") || strings.Contains(name, ".damaged-"):
			return nil
		}
		if err := add(filepath.ToSlash(name), path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	return s, err
}

// isDatabase reports whether a file belongs to a database, which is copied in another way.
func isDatabase(name string) bool {
	return slices.ContainsFunc(databases, func(db string) bool {
		return name == db || strings.HasPrefix(name, db+"-") || name == db+sqlitestore.MarkEnding
	})
}

// addFile adds a file. A server may put something else in its place meanwhile: a link would
// bring what the server cannot read itself into its workspace, and a pipe would not end. Such
// a name counts as one that was removed.
func addFile(out *tar.Writer, name, path string) (int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) {
		return 0, fs.ErrNotExist
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // only read: nothing can be lost
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fs.ErrNotExist
	}
	return info.Size(), addContent(out, &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), Size: info.Size(), ModTime: info.ModTime()}, f)
}

// addContent adds exactly the size that the header promises: a file that grows meanwhile is
// cut, and one that shrinks ends in zeros.
func addContent(out *tar.Writer, head *tar.Header, content io.Reader) error {
	if err := out.WriteHeader(head); err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(content, head.Size))
	if err == nil {
		_, err = io.CopyN(out, zeros{}, head.Size-n)
	}
	return err
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

func unpack(folder string, r io.Reader) (s Summary, err error) {
	plain, err := gzip.NewReader(r)
	if err != nil {
		return s, err
	}
	for in := tar.NewReader(plain); ; {
		head, err := in.Next()
		if errors.Is(err, io.EOF) {
			return s, nil
		}
		if err != nil {
			return s, err
		}
		name := filepath.FromSlash(head.Name)
		if !filepath.IsLocal(name) || head.Typeflag != tar.TypeReg {
			return s, fmt.Errorf("it has %q, which no backup has", head.Name)
		}
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return s, err
		}
		out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, os.FileMode(head.Mode).Perm()) //nolint:gosec // Perm bounds it
		if err != nil {
			return s, err
		}
		n, err := io.Copy(out, in) //nolint:gosec // the operator's own file may be as large as it is
		if err := errors.Join(err, out.Sync(), out.Close(), os.Chtimes(path, time.Time{}, head.ModTime)); err != nil {
			return s, err
		}
		s.Files, s.Bytes = s.Files+1, s.Bytes+n
	}
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
