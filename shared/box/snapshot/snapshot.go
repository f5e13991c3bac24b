// Package snapshot keeps what processes change in their workspaces over the sleep
// of their box: it packs what differs from what was staged, brings that to a store,
// and puts it back into a fresh workspace before the next process starts. It hides
// the archive, what makes a file a changed one, and how a store stays whole while
// runners are killed or outlived by newer ones.
//
// It runs no processes and does not decide when to save: whoever uses a [Keeper]
// calls it while nothing works in the workspace. It does not merge: of two who save
// under one key the later one is kept.
//
// # What is kept
//
// Files, folders and links that were made or changed since the workspace was
// staged, and the names of those that are gone; with their permissions and times.
// Not kept are the folders .venv, .cache, .tmp and node_modules at the top, which
// are made anew, sockets, pipes and devices, owners, and the setuid, setgid and
// sticky bits. Left out and counted is what is not the workspace's alone, or cannot
// be read: links that lead out of it, and files with another name outside.
//
// A change is seen by the size, the time, the permissions and the inode of a file.
// A process that rewrites a file in place with as many bytes and puts its time back
// changes nothing.
//
// # The archive
//
// A tar (PAX) in one zstd frame with a checksum. It begins with a global header,
// whose records are "DORMOUSE.snapshot", the version, which is 1, and
// "DORMOUSE.entries", how many entries follow. An entry with the record
// "DORMOUSE.gone" is something that is to be removed; the others are files, folders
// and symbolic links, and nothing else is taken. Names are relative, slashed and
// clean. An archive that is cut, or holds anything else, is refused.
//
// # Order
//
// A snapshot is a new object that counts once a pointer names it, and it carries
// the generation of the box that made it. A runner that was replaced may still be
// saving: what it brings is refused as soon as a newer one has saved.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

var (
	// ErrNone means that a key has no snapshot.
	ErrNone = errors.New("there is no snapshot")
	// ErrStale means that a newer generation of the box has saved already. What was
	// to be saved is lost; the newer snapshot stays.
	ErrStale = errors.New("a newer runner of the box has saved already")
	// ErrCorrupt means that an archive is cut, damaged, or not one of ours. What was
	// unpacked of it so far is of no use.
	ErrCorrupt = errors.New("the snapshot is damaged")
)

// Store keeps the newest snapshot of each key. A key is any text; gen is the
// generation of the box that calls. Safe for concurrent use.
type Store interface {
	// Get opens the newest snapshot, and says when it was saved. It fails with
	// [ErrNone] if there is none. The caller closes it.
	Get(ctx context.Context, key string, gen int64) (snapshot io.ReadCloser, saved time.Time, err error)

	// Put saves what write writes. If it fails, in whatever way, what was there
	// before is there still: with the error of write, with [ErrStale], or with that
	// of the store, after which the new one may have been saved all the same.
	Put(ctx context.Context, key string, gen int64, write func(io.Writer) error) error

	// Delete removes what gen or an older generation has saved, if anything.
	Delete(ctx context.Context, key string, gen int64) error
}

// Key is the key of what an owner keeps in a box: a session, or "principal-" and the
// hash of one, or "shared" for all. Those of two boxes share nothing. Whoever ends a
// session while its box is asleep deletes what is under it.
func Key(box, owner string) string { return box + "\x00" + owner }

// What holds when [Limits] says nothing.
const (
	DefaultBytes = 256 << 20
	DefaultFiles = 20_000
)

// maxName bounds the path of one entry, in bytes, so that the names of a deep tree
// cannot fill the memory of the runner.
const maxName = 1024

// Limits bound one snapshot. Zero means the default.
type Limits struct {
	Bytes int64 // of all its files, before they are compressed
	Files int   // files, folders and links, those that are gone included
}

func (l Limits) withDefaults() Limits {
	if l.Bytes <= 0 {
		l.Bytes = DefaultBytes
	}
	if l.Files <= 0 {
		l.Files = DefaultFiles
	}
	return l
}

// LimitError says that a snapshot is too large. What was saved before stays.
type LimitError struct {
	Bytes, MaxBytes int64
	Files, MaxFiles int
	Largest         string // the largest file, by its path in the workspace; "" if it is not about bytes
}

// Error names the limit that was passed, and the largest file.
func (e *LimitError) Error() string {
	if e.Bytes > e.MaxBytes {
		return fmt.Sprintf("the workspace has %d MiB of changes, over the limit of %d MiB for a snapshot (the largest is %q): put what need not be kept into .cache or .tmp",
			e.Bytes>>20, e.MaxBytes>>20, e.Largest)
	}
	return fmt.Sprintf("the workspace has more than %d changed files, the limit for a snapshot: put what need not be kept into .cache or .tmp", e.MaxFiles)
}
