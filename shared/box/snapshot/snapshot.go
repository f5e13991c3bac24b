// Package snapshot saves the changes of processes to their workspaces while their box sleeps. It
// packs what differs from the workspace as the provisioner had prepared (staged) it, and stores
// that. Before the next process starts, it unpacks the changes into a new workspace, and the
// provisioner then adds the program. The program of a server is never saved, so that a new version
// of it reaches every workspace.
//
// The package runs no processes and does not decide when to save: the user of a [Keeper] calls it
// while no process works in the workspace. It does not merge: if two processes save under one key,
// the later snapshot replaces the earlier one.
//
// # What is kept
//
// A snapshot has the files, folders and links that were made or changed after the workspace was
// staged, with their permissions and times. It also has the names of those that were removed. A
// snapshot does not have the top folders .venv, .cache, .tmp and node_modules, which are made
// anew. It has no sockets, pipes and devices, no owners, and no setuid, setgid and sticky bits. It
// leaves out, but counts, changed entries that cannot be read, links that lead out of the
// workspace, and files with a hard link outside of it.
//
// The package detects a change by the size, the time, the permissions and the inode of a file,
// which the provisioner has recorded. It does not notice if a process writes as many bytes into
// the same file and restores its time.
//
// # The archive
//
// The archive is a tar (PAX) in one zstd frame with a checksum. The archive begins with a global
// header with two records: "DORMOUSE.snapshot" is the version, 1, and "DORMOUSE.entries" is the
// number of entries that follow. An entry with the record "DORMOUSE.gone" names something that was
// removed. The other entries are files, folders and, at the end, symbolic links. Names are
// relative and clean, with slashes. An archive that is incomplete, or contains anything else, is
// refused.
//
// # Order
//
// A snapshot is a new object, which becomes valid when a pointer names it. The pointer has the
// generation of the box that saved it. A runner that was replaced may still be saving; the store
// refuses its snapshot if a newer runner has already saved.
package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

var (
	// ErrNone means that a key has no snapshot.
	ErrNone = errors.New("there is no snapshot")
	// ErrStale means that a newer generation of the box has saved already. The newer snapshot
	// stays, and the caller's snapshot is lost.
	ErrStale = errors.New("a newer runner of the box has saved already")
	// ErrCorrupt means that an archive is incomplete or damaged, or was not made by this package.
	ErrCorrupt = errors.New("the snapshot is damaged")
)

// Store stores the newest snapshot of each key. A key is any text. The argument gen is the
// generation of the box: a number that is higher for each later runner of the box. A Store must be
// safe for concurrent use.
type Store interface {
	// Get opens the newest snapshot of a key, and returns the time at which it was saved. Get
	// fails with [ErrNone] if there is no snapshot. The caller closes the snapshot.
	Get(ctx context.Context, key string) (snapshot io.ReadCloser, saved time.Time, err error)

	// Put calls the function write, and saves what write has written. The error is that of write,
	// [ErrStale], or an error of the store. If Put fails, the previous snapshot is still there, or
	// after an error of the store perhaps the new one.
	Put(ctx context.Context, key string, gen int64, write func(io.Writer) error) error

	// Delete removes the snapshot of a key if it is of generation gen or an older one.
	Delete(ctx context.Context, key string, gen int64) error
}

// Key returns the key of an owner's snapshot in a box. The owner is the id of a session,
// "principal-HASH" or "shared". Keys of different boxes are never equal. Whoever ends a
// session while its box is asleep must delete the snapshot of the session.
func Key(box, owner string) string { return box + "\x00" + owner }

// The defaults of [Limits].
const (
	DefaultBytes = 256 << 20
	DefaultFiles = 20_000
)

// maxName is the longest path of an entry, in bytes, so that the paths of a deep tree cannot fill
// the memory of the runner.
const maxName = 1024

// Limits limit one snapshot. Zero means the default.
type Limits struct {
	Bytes int64 // bytes of all files in the snapshot, before compression
	Files int   // files, folders and links, including removed ones
}

func (l Limits) withDefaults() Limits {
	return Limits{Bytes: cmp.Or(l.Bytes, DefaultBytes), Files: cmp.Or(l.Files, DefaultFiles)}
}

// LimitError says that a snapshot is too large. The previous snapshot stays.
type LimitError struct {
	Bytes, MaxBytes int64
	Files, MaxFiles int
	Largest         string // path of the largest changed file; may be ""
}

// Error names the limit, and for too many bytes the largest file.
func (e *LimitError) Error() string {
	if e.Bytes > e.MaxBytes {
		return fmt.Sprintf("the workspace has %d MiB of changes, over the limit of %d MiB for a snapshot (the largest is %q): put what need not be kept into .cache or .tmp",
			e.Bytes>>20, e.MaxBytes>>20, e.Largest)
	}
	return fmt.Sprintf("the workspace has more than %d changed files, the limit for a snapshot: put what need not be kept into .cache or .tmp", e.MaxFiles)
}
