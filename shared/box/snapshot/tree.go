package snapshot

import (
	"context"
	"errors"
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

	"golang.org/x/sys/unix"
)

// maxTree limits the names in a workspace, changed or not. It is more than staging allows,
// so that a process can add as many as Limits.Files.
const maxTree = 100_000

// entry is the state of one file, folder or link of a workspace.
type entry struct {
	mode  fs.FileMode // type and permissions
	size  int64       // of a file
	time  time.Time   // of a file
	inode uint64      // of a file
	link  string      // where a link leads, relative to its folder
	out   bool        // shared with others, or not readable
}

// same reports whether nothing has changed between two scans.
func (e entry) same(o entry) bool {
	return e.mode == o.mode && e.size == o.size && e.time.Equal(o.time) && e.inode == o.inode && e.link == o.link
}

// tree maps the clean, slashed paths in a workspace to their entries.
type tree map[string]entry

// names returns the sorted paths: a folder comes before its contents.
func (t tree) names() []string { return slices.Sorted(maps.Keys(t)) }

// same reports whether nothing has changed between two scans.
func (t tree) same(o tree) bool { return maps.EqualFunc(t, o, entry.same) }

// hidden reports whether a folder above name could not be read, so that it is not known
// whether name exists.
func (t tree) hidden(name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if t[dir].out {
			return true
		}
	}
	return false
}

// skipped reports whether scan ignores a name. It ignores dependencies and caches, which
// are made anew.
func skipped(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return slices.Contains([]string{".venv", ".cache", ".tmp", "node_modules"}, first)
}

// scan reads the entries of a workspace. It follows no links.
func scan(ctx context.Context, root *os.Root, limits Limits) (tree, error) {
	return scanAs(ctx, root, limits, false)
}

// scanAs is like scan. If whole is set, it skips no names, and leaves out neither links
// that lead outside nor files that others share.
func scanAs(ctx context.Context, root *os.Root, limits Limits, whole bool) (tree, error) {
	s := scanner{ctx: ctx, whole: whole, root: root, found: tree{}, most: maxTree + limits.Files, limits: limits, names: map[uint64]uint64{}, seen: map[uint64]uint64{}}
	if real, err := filepath.EvalSymlinks(root.Name()); err == nil {
		s.real = real
	}
	if err := s.folder("."); err != nil {
		return nil, err
	}
	for name, e := range s.found {
		if !whole && e.mode.IsRegular() && s.names[e.inode] > s.seen[e.inode] {
			// The file has another name outside of this workspace, so it does not belong
			// to the process alone.
			e.out = true
			s.found[name] = e
		}
	}
	return s.found, nil
}

type scanner struct {
	ctx    context.Context
	root   *os.Root
	real   string // the path of the workspace, links followed; "" if unknown
	found  tree
	most   int
	limits Limits
	whole  bool

	// names is the number of names of a file that has several, by inode. seen is how many
	// of them the scan has found.
	names, seen map[uint64]uint64
}

// folder reads all entries of one folder in small batches, because a process may have
// made any number of them.
func (s *scanner) folder(name string) error {
	if err := context.Cause(s.ctx); err != nil {
		return err
	}
	dir, err := s.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_DIRECTORY, 0)
	if err != nil {
		return s.unread(name, err)
	}
	defer func() { _ = dir.Close() }() // only read
	var inside []string
	for {
		some, err := dir.ReadDir(256)
		for _, d := range some {
			folder, err := s.look(path.Join(name, d.Name()))
			if err != nil {
				return err
			}
			if folder {
				inside = append(inside, path.Join(name, d.Name()))
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return s.unread(name, err)
		}
	}
	// Only one folder is open at a time, at any depth.
	_ = dir.Close()
	for _, sub := range inside {
		if err := s.folder(sub); err != nil {
			return err
		}
	}
	return nil
}

// unread records a folder that cannot be read.
func (s *scanner) unread(name string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist) && name != ".":
		delete(s.found, name)
		return nil
	case name == "." || !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.ENOTDIR):
		return err
	}
	e := s.found[name]
	e.out = true
	s.found[name] = e
	return nil
}

// look records one name, and reports whether it is a folder to read.
func (s *scanner) look(name string) (folder bool, err error) {
	if skipped(name) && !s.whole {
		return false, nil
	}
	if len(s.found) >= s.most || len(name) > maxName {
		return false, &LimitError{Files: s.most, MaxFiles: s.limits.Files, MaxBytes: s.limits.Bytes}
	}
	info, err := s.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	e := entry{mode: info.Mode() & (fs.ModeType | fs.ModePerm)}
	switch e.mode.Type() {
	case 0:
		e.size, e.time = info.Size(), info.ModTime()
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			e.inode = st.Ino
			if st.Nlink > 1 {
				s.names[e.inode] = uint64(st.Nlink)
				s.seen[e.inode]++
			}
		}
	case fs.ModeDir:
	case fs.ModeSymlink:
		e.mode = fs.ModeSymlink
		if e.link, e.out = s.link(name); s.whole {
			e.link, err = s.root.Readlink(name)
			e.out = err != nil
		}
	default:
		return false, nil // a socket, a pipe, a device
	}
	s.found[name] = e
	return e.mode.IsDir(), nil
}

// link reads a link. out reports whether it leads out of the workspace.
func (s *scanner) link(name string) (to string, out bool) {
	to, err := s.root.Readlink(name)
	if err != nil {
		return "", true
	}
	if filepath.IsAbs(to) {
		// The workspace has another path when it is restored, so links become relative.
		rel, err := filepath.Rel(s.real, filepath.Clean(to))
		if s.real == "" || err != nil || !filepath.IsLocal(rel) {
			return to, true
		}
		if to, err = filepath.Rel(path.Dir(name), rel); err != nil {
			return "", true
		}
		return to, false
	}
	return to, leavesOut(s.root, name, to)
}

// leavesOut reports whether the existing link name leads out of the folder, by itself or
// through other links.
func leavesOut(root *os.Root, name, to string) bool {
	if len(to) > maxName || !local(name, to) {
		return true
	}
	_, err := root.Stat(name)
	return err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ELOOP) && !absolute(root, path.Join(path.Dir(name), to))
}

// local reports whether a link stays in the folder, judged by its text alone.
func local(name, to string) bool {
	return to != "" && !filepath.IsAbs(to) && filepath.IsLocal(path.Join(path.Dir(name), to))
}

// absolute reports whether name is a link with an absolute path. link checks such a link
// by itself.
func absolute(root *os.Root, name string) bool {
	link, err := root.Readlink(name)
	return err == nil && filepath.IsAbs(link)
}

// changes is the difference between two states of a workspace.
type changes struct {
	put   []string // made or changed; a folder comes before its contents
	gone  []string // removed; a folder comes after its contents
	stats stats
}

// compare returns the changes from the staged workspace to the present one.
func compare(base, now tree, limits Limits) (changes, error) {
	var c changes
	var largest string
	for _, name := range now.names() {
		e := now[name]
		was, known := base[name]
		switch {
		case known && was.same(e):
		case e.out:
			c.stats.leftOut++
		default:
			c.put = append(c.put, name)
			c.stats.bytes += e.size
			if largest == "" || e.size > now[largest].size {
				largest = name
			}
		}
	}
	for _, name := range base.names() {
		if _, there := now[name]; !there && !now.hidden(name) {
			c.gone = append(c.gone, name)
		}
	}
	slices.Reverse(c.gone)
	c.stats.files, c.stats.gone = len(c.put), len(c.gone)
	if n := len(c.put) + len(c.gone); n > limits.Files || c.stats.bytes > limits.Bytes {
		return c, &LimitError{Bytes: c.stats.bytes, MaxBytes: limits.Bytes, Files: n, MaxFiles: limits.Files, Largest: largest}
	}
	return c, nil
}

// stats counts the contents of a snapshot.
type stats struct {
	files   int   // files, folders and links
	gone    int   // names of removed entries
	bytes   int64 // of all files, uncompressed
	leftOut int   // changed, but shared with others or not readable
}
