package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
)

// Limits of a folder that is copied into a workspace, in files and bytes.
const (
	maxFiles = 100_000
	maxBytes = 2 << 30
)

// entry is a file, folder or link of the copied folder, and the state of its copy.
type entry struct {
	Mode fs.FileMode `json:"m"`
	Size int64       `json:"s,omitempty"`
	Time time.Time   `json:"t,omitzero"`  // when the file was last changed
	Link string      `json:"l,omitempty"` // the target of the link, relative to its folder
	// Copy is the state of the copy when refresh last wrote it. If the copy differs now, a process
	// has changed the copy.
	Copy snapshot.State `json:"c,omitzero"`
	// Own says that a process had changed or removed the entry before its box slept. refresh never
	// changes such an entry, even if the source changes.
	Own bool `json:"o,omitempty"`
}

// tree maps the slash-separated paths in a folder to their entries.
type tree map[string]entry

// refresh copies a folder, the source, to another one. The argument record is the path of a file
// that lists the entries of the last copy. refresh removes listed entries that no longer exist in
// the source. If an entry has not changed in the source, its copy stays as the process has left it,
// or stays removed. Entries that are not listed belong to the process and stay. If there is no
// list, refresh removes everything that is not in the source, except the folders of dependencies
// and caches. No two calls may refresh the same folder at the same time.
func refresh(ctx context.Context, from, to, record string) error {
	src, dst, done, err := openRoots(from, to)
	if err != nil {
		return err
	}
	defer done()
	want, err := scan(ctx, src, from)
	if err != nil {
		return err
	}
	old, err := readTree(record)
	if err != nil {
		return err
	}
	c := copier{src: src, dst: dst, want: want, old: old}
	if err := c.removeStale(); err != nil {
		return err
	}
	for _, name := range want.names() {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := c.place(name); err != nil {
			return err
		}
	}
	for name, e := range old {
		if e.Own {
			want[name] = e
		}
	}
	return writeTree(record, want)
}

// openRoots opens the source and the target of a copy. The caller calls done at the end of the
// copy.
func openRoots(from, to string) (src, dst *os.Root, done func(), err error) {
	if src, err = os.OpenRoot(from); err != nil {
		return nil, nil, nil, err
	}
	if dst, err = os.OpenRoot(to); err != nil {
		_ = src.Close() // nothing was written
		return nil, nil, nil, err
	}
	// Errors of Close do not matter: src is only read, and dst has reported every failed write.
	return src, dst, func() { _, _ = src.Close(), dst.Close() }, nil
}

// # The source

// scan returns the entries to copy. scan fails if a link leads out of src. The argument real is
// the path of src without links.
func scan(ctx context.Context, src *os.Root, real string) (tree, error) {
	t := tree{}
	var size int64
	_, err := src.Stat("package-lock.json")
	if err != nil {
		_, err = src.Stat("npm-shrinkwrap.json")
	}
	installs := err == nil // node_modules is installed anew
	err = fs.WalkDir(src.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && name != ".":
			return nil // the entry was removed meanwhile
		case err != nil:
			return err
		case name == ".":
			return nil
		case context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case skipped(src, name, d, installs):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		e, ok, err := look(src, real, name, d)
		if err != nil || !ok {
			return err
		}
		t[name] = e
		size += e.Size
		if len(t) > maxFiles || size > maxBytes {
			return fmt.Errorf("it holds more than %d files or %d MiB: choose a smaller folder", maxFiles, maxBytes>>20)
		}
		return nil
	})
	return t, err
}

// look describes the entry with this name. The result ok is false if the entry is gone, or is a
// socket, pipe or device. look fails if a link leads out of src.
func look(src *os.Root, real, name string, d fs.DirEntry) (e entry, ok bool, err error) {
	info, err := d.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return e, false, nil
	}
	if err != nil {
		return e, false, err
	}
	e.Mode = info.Mode() & (fs.ModeType | fs.ModePerm)
	switch e.Mode.Type() {
	case 0:
		e.Size, e.Time = info.Size(), info.ModTime().UTC()
	case fs.ModeDir:
	case fs.ModeSymlink:
		e.Mode = fs.ModeSymlink
		var out bool
		if e.Link, out = snapshot.Link(src, real, name); out {
			err = fmt.Errorf("link %s leads out of the folder", name)
		}
	default:
		return e, false, nil // sockets, pipes and devices are not copied
	}
	return e, err == nil, err
}

// skipped reports whether an entry is not copied. If modules is set, node_modules is not.
func skipped(src *os.Root, name string, d fs.DirEntry, modules bool) bool {
	base := path.Base(name)
	if base == "node_modules" {
		return modules // even if node_modules is a link
	}
	if !d.IsDir() {
		return base == ".DS_Store" || strings.HasSuffix(base, ".pyc")
	}
	switch base {
	case ".git", ".hg", ".svn", ".jj", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".tox", ".nox",
		".uv-cache", ".npm", ".cache", ".tmp", ".venv":
		return true
	}
	// A virtual environment may have any name.
	_, err := src.Stat(path.Join(name, "pyvenv.cfg"))
	return err == nil || strings.HasSuffix(base, ".egg-info")
}

// # The copy

// copier brings a copy up to date with its source.
type copier struct {
	src, dst  *os.Root
	want, old tree // old is nil if there is no record of the last copy
}

// removeStale removes the entries that no longer exist in the source, inner ones first. An entry
// that another program has already removed is no error.
func (c *copier) removeStale() error {
	stale := c.old
	if stale == nil {
		stale = tree{}
		err := fs.WalkDir(c.dst.FS(), ".", func(name string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case name != "." && snapshot.Skipped(name) && d.IsDir():
				return fs.SkipDir
			case name != ".":
				stale[name] = entry{Mode: d.Type()}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	names := stale.names()
	slices.Reverse(names)
	for _, name := range names {
		if _, stays := c.want[name]; stays || stale[name].Own || snapshot.Skipped(name) && c.old == nil || !c.reached(name) {
			continue
		}
		err := c.dst.Remove(name)
		gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENAMETOOLONG)
		if err != nil && !gone && !stale[name].Mode.IsDir() {
			return err // a folder may contain files of the process, and then stays
		}
	}
	return nil
}

// reached reports whether all folders above name exist and are folders.
func (c *copier) reached(name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if info, err := c.dst.Lstat(dir); err != nil || !info.IsDir() {
			return false
		}
	}
	return true
}

// place brings one entry up to date, and records the state of its copy.
func (c *copier) place(name string) error {
	e := c.want[name]
	before, known := c.old[name]
	if before.Own {
		c.want[name] = before
		return nil
	}
	if ok, err := c.enter(path.Dir(name)); !ok || err != nil {
		return err
	}
	now, err := c.dst.Lstat(name)
	there := err == nil
	if known && !e.Mode.IsDir() && before.Size == e.Size && before.Mode == e.Mode && before.Time.Equal(e.Time) && before.Link == e.Link {
		e.Copy = before.Copy
		c.want[name] = e
		return nil // the copy stays as the process has left it
	}
	if there && now.Mode().Type() != e.Mode.Type() {
		// The process may have replaced a folder with a link.
		if err := c.dst.RemoveAll(name); err != nil {
			return err
		}
		there = false
	}
	switch {
	case !e.Mode.IsDir():
		err = c.replace(name, e)
	case !there:
		err = c.dst.Mkdir(name, e.Mode.Perm()|0o700)
	case !known: // the folder is not from an earlier copy, and may have another mode
		err = c.dst.Chmod(name, e.Mode.Perm()|0o700)
	}
	if err != nil {
		return err
	}
	if now, err := c.dst.Lstat(name); err == nil { // if it fails, another program has removed the entry meanwhile
		e.Copy = snapshot.StateOf(now, e.Link)
		c.want[name] = e
	}
	return nil
}

// enter prepares dir for a new entry. If a process had removed dir or a folder above it before its
// box slept ([entry].Own), enter makes dir again. enter returns false if the process had put
// something else in the place of such a folder.
func (c *copier) enter(dir string) (bool, error) {
	for above := dir; above != "."; above = path.Dir(above) {
		if !c.old[above].Own {
			continue
		}
		if err := c.dst.MkdirAll(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTDIR) {
			return false, err
		}
		return c.reached(path.Join(dir, "x")), nil
	}
	return true, nil
}

// replace replaces a file or a link by a rename, so that a process never sees a part of the file.
func (c *copier) replace(name string, e entry) error {
	temp := path.Join(path.Dir(name), ".staging-"+digest(name)[:12])
	if err := c.dst.RemoveAll(temp); err != nil {
		return err
	}
	var err error
	if e.Mode.Type() == fs.ModeSymlink {
		err = c.dst.Symlink(e.Link, temp)
	} else {
		err = c.copy(name, temp, e)
	}
	if err == nil {
		err = c.dst.Rename(temp, name)
	}
	if err == nil {
		return nil
	}
	// An error of this removal is less useful than err.
	_ = c.dst.RemoveAll(temp)
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

var errGone = errors.New("gone from the source")

// copy copies a file of the source to a new file of the target, at the path temp.
func (c *copier) copy(name, temp string, e entry) (err error) {
	in, err := c.src.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return errGone
	}
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // nothing was written
	out, err := c.dst.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, e.Mode.Perm()|0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	// The source may be growing, so copy only the size that was recorded.
	_, err = io.Copy(out, io.LimitReader(in, e.Size))
	return err
}

// # Records of copies

// names returns the sorted paths: a folder comes before its contents.
func (t tree) names() []string { return slices.Sorted(maps.Keys(t)) }

// readTree reads a record, nil if the file is missing or invalid.
func readTree(file string) (tree, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var t tree
	if json.Unmarshal(data, &t) != nil {
		return nil, nil
	}
	for name := range t {
		if !fs.ValidPath(name) || name == "." {
			return nil, nil
		}
	}
	return t, nil
}

func writeTree(file string, t tree) error {
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return writeFile(file, data)
}

// writeFile replaces a file by a rename.
func writeFile(file string, data []byte) error {
	temp, err := os.CreateTemp(filepath.Dir(file), ".new-*")
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), file)
	}
	if err != nil {
		_ = os.Remove(temp.Name()) // the first error says more
	}
	return err
}
