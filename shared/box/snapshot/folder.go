package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/durable"
)

// Folder is a [Store] in a folder of this machine, which several programs may share. Each key has
// a folder of its own, whose name is the key's digest. That folder contains the archive, and the
// pointer: the file "current", which names the archive. Put writes an archive under a new name,
// and then replaces the pointer. A file lock guards the pointers.
type Folder struct {
	path string
	fail func(step string) error // if not nil, tests use it to make a step fail
}

// NewFolder returns a store in the folder with this path. Only the user of this program can read
// its contents.
func NewFolder(path string) *Folder { return &Folder{path: path} }

var _ Store = (*Folder)(nil)

// pointer is the content of the file "current".
type pointer struct {
	Generation int64  `json:"generation"`
	Object     string `json:"object"`          // file name of the archive, "" if no workspace was saved
	Image      string `json:"image,omitempty"` // file name of the memory image saved with Object, "" for none
}

const (
	pointerFile = "current"
	suffix      = ".tar.zst"
	lockFile    = ".lock"
	sweptFile   = ".swept"
)

// Get opens the newest snapshot of a key; see [Store]. Get also marks the snapshot as used, for
// [Folder.Sweep].
func (f *Folder) Get(_ context.Context, key string) (io.ReadCloser, time.Time, error) {
	file, info, err := f.open(key, func(p pointer) string { return p.Object })
	if err != nil {
		return nil, time.Time{}, err
	}
	return file, info.ModTime(), nil
}

// open opens the archive or the memory image of a key; choose returns its name in the pointer (see
// [Folder]). open fails with [ErrNone] if the name is "".
func (f *Folder) open(key string, choose func(pointer) string) (*os.File, fs.FileInfo, error) {
	none, dir := fmt.Errorf("%w in the folder of snapshots", ErrNone), f.of(key)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, none
	}
	unlock, err := f.lock()
	if err != nil {
		return nil, nil, err
	}
	defer unlock() // from then on the open file may be replaced or deleted, and stays readable
	p, err := f.current(key)
	if err != nil {
		return nil, nil, err
	}
	if choose(p) == "" {
		return nil, nil, none
	}
	file, err := os.Open(filepath.Join(dir, choose(p)))
	if err != nil {
		return nil, nil, fmt.Errorf("open the snapshot: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close() // nothing was written
		return nil, nil, err
	}
	now := time.Now()
	// If this fails, Sweep may remove the snapshot too early.
	_ = os.Chtimes(filepath.Join(dir, pointerFile), now, now)
	return file, info, nil
}

// Put saves a snapshot of a key, and keeps no memory image; see [Store].
func (f *Folder) Put(_ context.Context, key string, gen int64, write func(io.Writer) error) error {
	return f.put(key, gen, nil, func(string) (func(io.Writer) error, error) { return write, nil })
}

// put saves a memory image, unless image is nil, and then an archive of the workspace. The
// function archive gets the name of the present archive, and returns the function that writes the
// next one, or nil to keep the present one. Either both files become current or neither does.
func (f *Folder) put(key string, gen int64, image func(io.Writer) error, archive func(present string) (write func(io.Writer) error, err error)) (err error) {
	dir := f.of(key)
	var files []*os.File
	defer func() {
		for _, file := range files {
			_ = file.Close() // the file was synced, or is not used
			if err != nil {
				_ = os.Remove(file.Name()) // err matters more than an error of Remove
			}
		}
		if err != nil {
			_ = os.Remove(dir) // fails if other snapshots are in it
		}
	}()
	add := func(suffix string, write func(io.Writer) error) (string, error) {
		file, err := f.begin(dir, suffix)
		if err != nil {
			return "", err
		}
		files = append(files, file)
		if err = write(file); err == nil {
			err = f.step("sync")
		}
		if err == nil {
			err = file.Sync()
		}
		if err != nil {
			return "", fmt.Errorf("write the snapshot: %w", err)
		}
		return filepath.Base(file.Name()), nil
	}
	p := pointer{Generation: gen}
	if image != nil {
		if p.Image, err = add(imageSuffix, image); err != nil {
			return err
		}
	}
	present, err := f.current(key)
	if err != nil {
		return err
	}
	write, err := archive(present.Object)
	if err != nil {
		return err
	}
	if p.Object = present.Object; write != nil {
		if p.Object, err = add(suffix, write); err != nil {
			return err
		}
	}
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return f.commit(key, p)
}

// begin makes a file for a snapshot, and locks the file so that no other runner removes it while
// it is written.
func (f *Folder) begin(dir, suffix string) (*os.File, error) {
	unlock, err := f.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for the snapshot: %w", err)
	}
	file, err := os.CreateTemp(dir, "*"+suffix)
	if err == nil {
		if err = flock(file, unix.LOCK_EX); err == nil {
			return file, nil
		}
		_ = file.Close() // nothing was written
		_ = os.Remove(file.Name())
	}
	return nil, fmt.Errorf("make the snapshot: %w", err)
}

// commit makes p the pointer of a key. commit fails with [ErrStale] if the present pointer has a
// newer generation. The caller must hold the lock of f.
func (f *Folder) commit(key string, p pointer) error {
	was, err := f.current(key)
	if err != nil {
		return err
	}
	if was.Generation > p.Generation {
		return fmt.Errorf("generation %d, and there is a snapshot of %d: %w", p.Generation, was.Generation, ErrStale)
	}
	dir := f.of(key)
	for _, name := range []string{p.Object, p.Image} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("the snapshot was swept away before it was saved: %w", err)
		}
	}
	if err := f.step("commit"); err != nil {
		return err
	}
	if err := p.write(dir); err != nil {
		return fmt.Errorf("save the snapshot: %w", err)
	}
	// From here on the snapshot is saved. If old files remain, the next save removes them.
	f.removeOthers(dir, p)
	return nil
}

// removeOthers removes all files of a key that its pointer does not name, including those of
// programs that were killed. removeOthers leaves files that a runner is writing.
func (f *Folder) removeOthers(dir string, p pointer) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if e.Name() == pointerFile || e.Name() == p.Object || e.Name() == p.Image {
			continue
		}
		if file, err := os.Open(name); err == nil {
			if flock(file, unix.LOCK_EX|unix.LOCK_NB) == nil {
				_ = os.Remove(name)
			}
			_ = file.Close() // nothing was written
		}
	}
}

// Delete removes the snapshot of a key, and its memory image; see [Store].
func (f *Folder) Delete(_ context.Context, key string, gen int64) error {
	if _, err := os.Stat(f.of(key)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	p, err := f.current(key)
	if err != nil || p.Generation > gen {
		return err
	}
	return f.remove(f.of(key))
}

// Sweep removes the snapshots that were neither saved nor read within the given age, and returns
// their number. If the last sweep is less than age/24 ago, Sweep returns 0 at once.
func (f *Folder) Sweep(_ context.Context, age time.Duration) (int, error) {
	mark := filepath.Join(f.path, sweptFile)
	if info, err := os.Stat(mark); err == nil && time.Since(info.ModTime()) < age/24 {
		return 0, nil
	}
	entries, err := os.ReadDir(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	unlock, err := f.lock()
	if err != nil {
		return 0, err
	}
	defer unlock()
	if err := durable.WriteFile(mark, nil, 0o600); err != nil {
		return 0, err
	}
	n := 0
	for _, e := range entries {
		dir := filepath.Join(f.path, e.Name())
		if !e.IsDir() || time.Since(newest(dir)) < age {
			continue
		}
		if err := f.remove(dir); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// newest returns the latest modification time of the files in the folder of a key. Get changes the
// time of the file "current", so a read counts too.
func newest(dir string) time.Time {
	var last time.Time
	entries, err := os.ReadDir(dir)
	if err != nil {
		return time.Now() // another program has just removed the folder
	}
	if info, err := os.Stat(dir); err == nil {
		last = info.ModTime()
	}
	if len(entries) > 0 {
		last = time.Time{} // the folder's own time also changes when old files are removed
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}

// remove removes the folder of a key. The pointer goes first, so that no damaged snapshot is left
// if remove is interrupted.
func (f *Folder) remove(dir string) error {
	if err := os.Remove(filepath.Join(dir, pointerFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the snapshot: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the snapshot: %w", err)
	}
	return nil
}

func (f *Folder) of(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(f.path, hex.EncodeToString(sum[:]))
}

func (f *Folder) current(key string) (pointer, error) { return pointerIn(f.of(key)) }

// pointerIn reads the file "current" in the folder of a key. Without such a file the result is zero.
func pointerIn(dir string) (pointer, error) {
	var p pointer
	text, err := os.ReadFile(filepath.Join(dir, pointerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return p, fmt.Errorf("read which snapshot is the newest: %w", err)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("%w: which is the newest cannot be read: %w", ErrCorrupt, err)
	}
	for _, name := range []string{p.Object, p.Image} {
		if name != "" && (name != filepath.Base(name) || !strings.HasSuffix(name, suffix) && !strings.HasSuffix(name, imageSuffix)) {
			return p, fmt.Errorf("%w: the newest has the name %q", ErrCorrupt, name)
		}
	}
	return p, nil
}

func (p pointer) write(dir string) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, pointerFile), text, 0o600)
}

// lock locks the folder against all other commits, reads and removals. So that these do not wait
// long, no caller may write a snapshot while it has the lock.
func (f *Folder) lock() (unlock func(), err error) {
	if err := os.MkdirAll(f.path, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of snapshots: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(f.path, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the folder of snapshots: %w", err)
	}
	if err := flock(file, unix.LOCK_EX); err != nil {
		_ = file.Close() // the error says more
		return nil, fmt.Errorf("lock the folder of snapshots: %w", err)
	}
	return func() { _ = file.Close() }, nil // closing releases the lock
}

func flock(file *os.File, how int) error {
	for {
		if err := unix.Flock(int(file.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (f *Folder) step(name string) error {
	if f.fail == nil {
		return nil
	}
	return f.fail(name)
}
