// Package snapshot keeps the changes of processes to their workspaces while their box
// sleeps. It packs what differs from the staged workspace and brings it to a store. Before
// the next process starts, it puts that into a new workspace, which is then staged. So the
// program of a server is never kept, and a new one reaches every workspace. It hides the
// archive, how it detects a changed file, and how a store stays whole while runners are
// killed or outlived by newer ones.
//
// It runs no processes and does not decide when to save: the user of a [Keeper] calls it
// while no process works in the workspace. It does not merge: if two processes save
// under one key, the later snapshot stays.
//
// # What is kept
//
// A snapshot has the files, folders and links that were made or changed since the
// workspace was staged, with their permissions and times. It also has the names of those
// that were removed. It does not have the top folders .venv, .cache, .tmp and
// node_modules, which are made anew. It has no sockets, pipes and devices, no owners, and
// no setuid, setgid and sticky bits. It leaves out entries that cannot be read or that
// the workspace shares with others, and counts them. Shared are links that lead out of
// it, and files with another name outside.
//
// The package detects a change by the size, the time, the permissions and the inode of a
// file, which staging has noted. It does not notice that a process rewrites a file in place with as many bytes and
// restores its time.
//
// # The archive
//
// The archive is a tar (PAX) in one zstd frame with a checksum. It begins with a global
// header with two records: "DORMOUSE.snapshot" is the version, 1, and "DORMOUSE.entries"
// is the number of entries that follow. An entry with the record "DORMOUSE.gone" was
// removed. The other entries are files, folders and, at the end, symbolic links. Names are
// relative, slashed and clean. An archive that is cut, or holds anything else, is
// refused.
//
// # Order
//
// A snapshot is a new object that is valid once a pointer names it. It carries the
// generation of the box that made it. A runner that was replaced may still be saving; the
// store refuses its snapshot if a newer runner has already saved.
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
	// ErrStale means that a newer generation of the box has saved already. The newer
	// snapshot stays, and the refused one is lost.
	ErrStale = errors.New("a newer runner of the box has saved already")
	// ErrCorrupt means that an archive is cut, damaged, or was not made by this package.
	// The workspace into which it was unpacked cannot be used.
	ErrCorrupt = errors.New("the snapshot is damaged")
)

// Store keeps the newest snapshot of each key. A key is any text; gen is the generation
// of the calling box. It must be safe for concurrent use.
type Store interface {
	// Get opens the newest snapshot, and returns when it was saved. It fails with
	// [ErrNone] if there is none. The caller closes the snapshot.
	Get(ctx context.Context, key string, gen int64) (snapshot io.ReadCloser, saved time.Time, err error)

	// Put saves the output of write. If it fails, the previous snapshot is still there.
	// It fails with the error of write, with [ErrStale], or with an error of the store.
	// After an error of the store the new snapshot may have been saved all the same.
	Put(ctx context.Context, key string, gen int64, write func(io.Writer) error) error

	// Delete removes the snapshot of gen or an older generation, if there is one.
	Delete(ctx context.Context, key string, gen int64) error
}

// Key returns the key of an owner's snapshot in a box. owner is a session, or
// "principal-" and the hash of a principal, or "shared". Keys of different boxes are
// never equal. The caller that ends a session while its box is asleep deletes the
// session's snapshot.
func Key(box, owner string) string { return box + "\x00" + owner }

// The defaults of [Limits].
const (
	DefaultBytes = 256 << 20
	DefaultFiles = 20_000
)

// maxName limits the path of one entry, in bytes, so that the names of a deep tree
// cannot fill the memory of the runner.
const maxName = 1024

// Limits limit one snapshot. Zero means the default.
type Limits struct {
	Bytes int64 // bytes of all its files, before compression
	Files int   // files, folders and links, with the removed ones
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

// LimitError says that a snapshot is too large. The previous snapshot stays.
type LimitError struct {
	Bytes, MaxBytes int64
	Files, MaxFiles int
	Largest         string // path of the largest file in the workspace; may be ""
}

// Error names the limit, and the largest file if the limit is about bytes.
func (e *LimitError) Error() string {
	if e.Bytes > e.MaxBytes {
		return fmt.Sprintf("the workspace has %d MiB of changes, over the limit of %d MiB for a snapshot (the largest is %q): put what need not be kept into .cache or .tmp",
			e.Bytes>>20, e.MaxBytes>>20, e.Largest)
	}
	return fmt.Sprintf("the workspace has more than %d changed files, the limit for a snapshot: put what need not be kept into .cache or .tmp", e.MaxFiles)
}
