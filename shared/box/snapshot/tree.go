package snapshot

import (
	"context"
	"encoding/json"
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

// A workspace may have maxTree plus Limits.Files entries, changed or not. The provisioner makes
// fewer than maxTree, so a process can add Limits.Files.
const maxTree = 100_000

// State is what the package compares of a file, folder or link.
type State struct {
	Mode  fs.FileMode `json:"m"`           // type and permissions
	Size  int64       `json:"s,omitempty"` // of a file, in bytes
	Time  time.Time   `json:"t,omitzero"`  // when a file was last changed
	Inode uint64      `json:"i,omitempty"` // of a file; 0 if unknown
	Link  string      `json:"l,omitempty"` // the target of a link, relative to its folder
}

// StateOf returns the state of a file, folder or link. The argument link is the target of a link.
func StateOf(info fs.FileInfo, link string) State {
	s := State{Mode: info.Mode() & (fs.ModeType | fs.ModePerm)}
	if s.Mode.Type() == fs.ModeSymlink {
		s.Mode, s.Link = fs.ModeSymlink, link
	}
	if s.Mode.IsRegular() {
		s.Size, s.Time = info.Size(), info.ModTime()
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			s.Inode = st.Ino
		}
	}
	return s
}

// same reports whether s and o are equal. Inodes count only if both are known.
func (s State) same(o State) bool {
	return s.Mode == o.Mode && s.Size == o.Size && s.Time.Equal(o.Time) && s.Link == o.Link &&
		(s.Inode == o.Inode || s.Inode == 0 || o.Inode == 0)
}

// entry is a file, folder or link of a workspace.
type entry struct {
	State
	out bool // left out of snapshots: not readable, a link that leads out, or a file with a hard link outside
}

// tree maps the clean, slashed paths in a workspace to their entries.
type tree map[string]entry

// names returns the sorted paths: a folder comes before its contents.
func (t tree) names() []string { return slices.Sorted(maps.Keys(t)) }

// hidden reports whether a folder above name could not be read, so that nobody knows whether name
// exists.
func (t tree) hidden(name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if t[dir].out {
			return true
		}
	}
	return false
}

// Skipped reports whether a path is in a folder of dependencies or caches of a process, which
// snapshots leave out.
func Skipped(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return slices.Contains([]string{".venv", ".cache", ".tmp", "node_modules"}, first)
}

// scan reads the entries of a workspace, and follows no links. If whole is set, scan skips no
// names, and includes links that lead out of the folder and files with hard links outside of it.
func scan(ctx context.Context, root *os.Root, limits Limits, whole bool) (tree, error) {
	s := scanner{ctx: ctx, whole: whole, root: root, found: tree{}, most: maxTree + limits.Files, limits: limits, names: map[uint64]uint64{}, seen: map[uint64]uint64{}}
	if real, err := filepath.EvalSymlinks(root.Name()); err == nil {
		s.real = real
	}
	if err := s.folder("."); err != nil {
		return nil, err
	}
	for name, e := range s.found {
		if !whole && e.Mode.IsRegular() && s.names[e.Inode] > s.seen[e.Inode] {
			// The file has a hard link outside of this workspace, so it does not belong to the
			// process alone.
			e.out = true
			s.found[name] = e
		}
	}
	return s.found, nil
}

type scanner struct {
	ctx    context.Context
	root   *os.Root
	real   string // the path of the workspace without links; "" if unknown
	found  tree
	most   int
	limits Limits
	whole  bool

	// names is, by inode, how many hard links a file has, for files that have several. seen is how
	// many of these links the scan has found.
	names, seen map[uint64]uint64
}

// folder reads the entries of one folder in small batches, because a process may have made any
// number of them.
func (s *scanner) folder(name string) error {
	if err := context.Cause(s.ctx); err != nil {
		return err
	}
	dir, err := s.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_DIRECTORY, 0)
	if err != nil {
		return s.unread(name, err)
	}
	defer func() { _ = dir.Close() }() // nothing was written
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
	// Close the folder first, so that only one is open at a time, at any depth.
	_ = dir.Close()
	for _, sub := range inside {
		if err := s.folder(sub); err != nil {
			return err
		}
	}
	return nil
}

// unread handles err, the error of reading a folder. If the folder is gone or may not be read, unread
// records that and returns nil.
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

// look records one entry, and reports whether it is a folder that must be read too.
func (s *scanner) look(name string) (folder bool, err error) {
	if Skipped(name) && !s.whole {
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
	e := entry{State: StateOf(info, "")}
	switch e.Mode.Type() {
	case 0:
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
			s.names[e.Inode] = uint64(st.Nlink)
			s.seen[e.Inode]++
		}
	case fs.ModeDir:
	case fs.ModeSymlink:
		if e.Link, e.out = Link(s.root, s.real, name); s.whole {
			e.Link, err = s.root.Readlink(name)
			e.out = err != nil
		}
	default:
		return false, nil // sockets, pipes and devices are not saved
	}
	s.found[name] = e
	return e.Mode.IsDir(), nil
}

// Link returns the target of a link in root, relative to the link's folder. The argument real is the
// path of root without links, "" if unknown. The result out reports whether the link leads out of
// root, by itself or through other links.
func Link(root *os.Root, real, name string) (to string, out bool) {
	to, err := root.Readlink(name)
	if err != nil {
		return "", true
	}
	if filepath.IsAbs(to) {
		// The restored workspace will have another path, so links become relative.
		rel, err := filepath.Rel(real, filepath.Clean(to))
		if real == "" || err != nil || !filepath.IsLocal(rel) {
			return to, true
		}
		if to, err = filepath.Rel(path.Dir(name), rel); err != nil {
			return "", true
		}
		// Folders in to may be links. os.Root cannot check them, because it follows no absolute link.
		// They do no harm: the copy gets a relative link, which is followed only within it.
		return to, false
	}
	return to, leavesOut(root, name, to)
}

// leavesOut reports whether a link leads out of the folder, by itself or through other links. The
// link is at name, and points to target.
func leavesOut(root *os.Root, name, target string) bool {
	if len(target) > maxName || !local(name, target) {
		return true
	}
	_, err := root.Stat(name)
	return err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ELOOP) && !absolute(root, path.Join(path.Dir(name), target))
}

// local reports whether a link stays in the folder, judged only by its text.
func local(name, to string) bool {
	return to != "" && !filepath.IsAbs(to) && filepath.IsLocal(path.Join(path.Dir(name), to))
}

// absolute reports whether name is a link with an absolute path.
func absolute(root *os.Root, name string) bool {
	link, err := root.Readlink(name)
	return err == nil && filepath.IsAbs(link)
}

// changes is what a process has changed in its workspace since the provisioner prepared it.
type changes struct {
	put  tree     // entries that were made or changed
	gone []string // names that were removed; a folder comes after its contents

	bytes   int64 // size of all files in put, uncompressed
	leftOut int   // how many changed entries are left out of the snapshot
}

// same reports whether c and o have the same entries and removed names.
func (c changes) same(o changes) bool {
	return slices.Equal(c.gone, o.gone) && maps.EqualFunc(c.put, o.put, func(a, b entry) bool { return a.same(b.State) })
}

// staged reads the record of what a Provisioner has put into a workspace. staged returns the
// states by name, nil if file is "".
func staged(file string) (map[string]State, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var record map[string]struct {
		Copy State `json:"c"`
	}
	if err := json.Unmarshal(text, &record); err != nil {
		return nil, err
	}
	base := map[string]State{}
	for name, r := range record {
		base[name] = r.Copy
	}
	return base, nil
}

// compare returns how the present entries of a workspace differ from those that were prepared.
func compare(base map[string]State, now tree, limits Limits) (changes, error) {
	c := changes{put: tree{}}
	largest := ""
	for name, e := range now {
		was, known := base[name]
		switch {
		case known && was.same(e.State):
		case e.out:
			c.leftOut++
		default:
			c.put[name] = e
			c.bytes += e.Size
			if largest == "" || e.Size > now[largest].Size {
				largest = name
			}
		}
	}
	for name := range base {
		if _, there := now[name]; !there && !Skipped(name) && !now.hidden(name) {
			c.gone = append(c.gone, name)
		}
	}
	slices.Sort(c.gone)
	slices.Reverse(c.gone)
	if n := len(c.put) + len(c.gone); n > limits.Files || c.bytes > limits.Bytes {
		return c, &LimitError{Bytes: c.bytes, MaxBytes: limits.Bytes, Files: n, MaxFiles: limits.Files, Largest: largest}
	}
	return c, nil
}
