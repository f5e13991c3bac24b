// Package watch reports changes of files. It checks the files at intervals, because a
// folder that is mounted into a container may announce no changes.
package watch

import (
	"context"
	"os"
	"time"
)

const (
	// Every is the time between two looks. A look is one stat for each file.
	Every = time.Second
	// Quiet is how long files must stay unchanged before a change counts, so that the
	// caller reads no file that is half saved.
	Quiet = 200 * time.Millisecond
)

// Files calls changed when a file was changed, created or removed, and all files then
// stayed unchanged for [Quiet]. A file has changed if its size, its modification time or
// its inode has. Files asks paths for the paths at every check. A path that is new to
// Files counts as changed, so the first check always calls changed. Files returns when
// ctx ends.
func Files(ctx context.Context, paths func() []string, changed func()) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	seen := map[string]os.FileInfo{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := look(paths())
		if same(seen, now) {
			continue
		}
		for seen = nil; !same(seen, now); {
			seen = now
			select {
			case <-ctx.Done():
				return
			case <-time.After(Quiet):
			}
			now = look(paths())
		}
		changed()
	}
}

// look returns the file information of each path, nil for a path without a file.
func look(paths []string) map[string]os.FileInfo {
	found := make(map[string]os.FileInfo, len(paths))
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			info = nil
		}
		found[path] = info
	}
	return found
}

// same reports whether b has only paths of a, and all of them are as they were.
func same(a, b map[string]os.FileInfo) bool {
	for path, is := range b {
		was, known := a[path]
		switch {
		case !known, (was == nil) != (is == nil):
			return false
		case is == nil:
		case was.Size() != is.Size(), !was.ModTime().Equal(is.ModTime()), !os.SameFile(was, is):
			return false
		}
	}
	return true
}
