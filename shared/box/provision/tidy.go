package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// This file removes unused installs. The file "used" in an install's folder has the time of the
// last use as its modification time. A Provisioner that has returned the install holds a shared
// lock on that file until the Provisioner is closed. To remove an install, Tidy needs the
// exclusive lock.

// Keep limits what stays in a cache. Zero means no limit.
type Keep struct {
	Age   time.Duration // how long an install may be unused
	Bytes int64         // size of all installs together; the most recently used ones stay
}

const (
	usedFile   = "used"
	sizeFile   = "size"
	tidiedFile = ".tidied"
	tidyEvery  = 24 * time.Hour
	touchEvery = time.Hour // a start updates the time of usedFile only if it is older than this
)

// hold marks an install as in use. While Tidy removes the install, hold waits, so the caller must
// check afterwards that the install still exists.
func (s *Provisioner) hold(ctx context.Context, home string) error {
	file := filepath.Join(home, usedFile)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[home] == nil {
		if err := os.MkdirAll(home, 0o755); err != nil {
			return err
		}
		release, err := lock(ctx, file, unix.LOCK_SH, func() {})
		if err != nil {
			return fmt.Errorf("use an install: %w", err)
		}
		s.held[home] = release
	}
	if info, err := os.Stat(file); err != nil || time.Since(info.ModTime()) > touchEvery {
		now := time.Now()
		return os.Chtimes(file, now, now)
	}
	return nil
}

// Close releases the locks on the installs that the Provisioner has returned. Call it when no process
// uses these installs any more.
func (s *Provisioner) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, release := range s.held {
		release()
	}
	clear(s.held)
}

// measure records the size of a new install, and makes the next Tidy check the limit.
func (s *Provisioner) measure(home, dir string) {
	if n, err := size(dir); err == nil {
		_ = writeFile(filepath.Join(home, sizeFile), []byte(strconv.FormatInt(n, 10)))
	}
	_ = os.Remove(filepath.Join(s.cfg.Cache, tidiedFile))
}

// stored is what [Tidy] knows of an install.
type stored struct {
	home  string
	used  time.Time
	bytes int64
}

// Tidy removes from a cache the unused installs that are over the limits, even unfinished ones, and
// returns their number. If Tidy has run within the last day, and no install was made since, it
// returns at once. Tidy leaves the two lock files of each install, on which another start may hold
// a lock.
func Tidy(ctx context.Context, cache string, keep Keep) (removed int, err error) {
	mark := filepath.Join(cache, tidiedFile)
	if info, err := os.Stat(mark); err == nil && time.Since(info.ModTime()) < tidyEvery {
		return 0, nil
	}
	locks, err := filepath.Glob(filepath.Join(cache, "*", "*", "lock"))
	if err != nil || len(locks) == 0 {
		return 0, err
	}
	if err := writeFile(mark, nil); err != nil { // written first, because an install that is made meanwhile removes it
		return 0, err
	}
	all := make([]stored, 0, len(locks))
	total := int64(0)
	for _, file := range locks {
		k, err := inspect(filepath.Dir(file))
		if err != nil {
			return 0, err
		}
		total += k.bytes
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b stored) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.home, b.home)) })
	var errs []error
	for _, k := range all {
		old := keep.Age > 0 && time.Since(k.used) > keep.Age
		if ctx.Err() != nil || !old && (keep.Bytes <= 0 || total <= keep.Bytes) {
			break // the installs after this one were used later
		}
		gone, err := k.remove()
		if errs = append(errs, err); gone {
			total -= k.bytes
			removed++
		}
	}
	return removed, errors.Join(errs...)
}

// inspect finds out when an install was last used, and its size.
func inspect(home string) (stored, error) {
	k := stored{home: home}
	for _, name := range []string{usedFile, "ready", "lock"} { // an install of an older version has no usedFile
		if info, err := os.Stat(filepath.Join(home, name)); err == nil {
			k.used = info.ModTime()
			break
		}
	}
	text, err := os.ReadFile(filepath.Join(home, sizeFile))
	if err == nil {
		if k.bytes, err = strconv.ParseInt(string(text), 10, 64); err == nil {
			return k, nil
		}
	}
	k.bytes, err = size(home)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // another start is just making or removing the install
	}
	return k, err
}

// remove removes an install, unless it is in use, is being made, or is already empty. The result
// gone reports whether something was removed.
func (k stored) remove() (gone bool, err error) {
	for _, name := range []string{"lock", usedFile} {
		unlock, held, err := tryLock(filepath.Join(k.home, name), unix.LOCK_EX)
		if err != nil || held {
			return false, err
		}
		defer unlock()
	}
	entries, err := os.ReadDir(k.home)
	if err != nil {
		return false, err
	}
	// "ready" goes first, so that the install does not count as finished if the removal is interrupted.
	names := []string{"ready"}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "made-") || e.Name() == "output" || e.Name() == sizeFile {
			names = append(names, e.Name())
			gone = true
		}
	}
	for _, name := range names {
		if err := removeInstall(filepath.Join(k.home, name)); err != nil {
			return false, fmt.Errorf("remove an unused install: %w", err)
		}
	}
	return gone, nil
}

// size returns the sum of the sizes of all files below a folder.
func size(folder string) (int64, error) {
	var n int64
	err := filepath.WalkDir(folder, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}
