// Package watch reports changes of files. It checks the files at intervals, because a
// folder that is mounted into a container may announce no changes.
package watch

import (
	"context"
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Quiet is how long files must stay unchanged before a change is reported, so that the caller does
// not read a half-written file.
const Quiet = 200 * time.Millisecond

// Files calls onChange when files have changed, and then stayed unchanged for [Quiet]. At each
// interval, listPaths returns the files to look at. A file has changed if its size, modification time
// or inode has, or if it was created or removed. A change of the paths counts as well. The argument
// seen is the state of the files that the caller knows. If it is nil, the first look finds a
// change unless there are no paths. Files returns when ctx ends.
func Files(ctx context.Context, interval time.Duration, seen Seen, listPaths func() []string, onChange func()) {
	for storage.Rest(ctx, interval) == nil {
		now := Look(listPaths())
		if same(seen, now) {
			continue
		}
		for seen = nil; !same(seen, now); {
			seen = now
			if storage.Rest(ctx, Quiet) != nil {
				return
			}
			now = Look(listPaths())
		}
		onChange()
	}
}

// Seen has the file information by path; nil for a path without a file.
type Seen map[string]os.FileInfo

// Look returns the current state of files.
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

// same reports whether a and b have the same paths, and their files are unchanged.
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
