// Package watch reports changes of files. It checks the files at intervals, because a
// folder that is mounted into a container may announce no changes.
package watch

import (
	"context"
	"os"
	"time"
)

// Quiet is how long files must stay unchanged before a change counts, so that the caller reads
// no file that is half saved.
const Quiet = 200 * time.Millisecond

// Files calls changed when a file was changed, created or removed, and all files then
// stayed unchanged for [Quiet]. A file has changed if its size, its modification time or
// its inode has. Files looks at the files at intervals of every, with one stat for each, and
// asks paths for the paths each time. A path that is new, or gone, counts as changed. seen has
// the files as the caller knows them; with nil, the first look calls changed if there is a
// path. Files returns when ctx ends.
func Files(ctx context.Context, every time.Duration, seen Seen, paths func() []string, changed func()) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := Look(paths())
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
			now = Look(paths())
		}
		changed()
	}
}

// Seen has the file information of paths, nil for a path without a file.
type Seen map[string]os.FileInfo

// Look returns how the files are now.
func Look(paths []string) Seen {
	found := make(Seen, len(paths))
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			info = nil
		}
		found[path] = info
	}
	return found
}

// same reports whether b has the paths of a, and all of them are as they were.
func same(a, b Seen) bool {
	if len(a) != len(b) {
		return false
	}
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
