package provision

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lock locks a file, which it makes if necessary, and returns the function that unlocks it. The
// argument kind is unix.LOCK_EX or unix.LOCK_SH. The lock also excludes other goroutines of this
// program. Never remove the file: the next start would make a new one, and lock it at the same time.
//
// If lock has to wait, it calls the function waiting once. It polls, because ctx could not end a
// system call that blocks for a lock.
func lock(ctx context.Context, file string, kind int, waiting func()) (unlock func(), err error) {
	pause := 5 * time.Millisecond
	for first := true; ; first = false {
		unlock, held, err := tryLock(file, kind)
		if err != nil || !held {
			return unlock, err
		}
		if first {
			waiting()
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
			pause = min(2*pause, 200*time.Millisecond)
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("another start holds it: %w", context.Cause(ctx))
		}
	}
}

// tryLock locks a file. The result held is true if somebody else holds a lock that excludes this
// one.
func tryLock(file string, kind int) (unlock func(), held bool, err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, err
	}
	for {
		err = unix.Flock(int(f.Fd()), kind|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { _ = f.Close() }, false, nil // closing releases the lock
		case errors.Is(err, unix.EINTR):
			continue
		}
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, true, nil
		}
		return nil, false, fmt.Errorf("lock %s: %w", file, err)
	}
}

// claimed has the folders that Claim has made for this program.
var claimed sync.Map

// settleTime is how long Claim waits until another runner releases the folder of a name.
const settleTime = 5 * time.Second

// Claim makes a folder below root for one runner, to be the Base of its Config. If another runner
// still has that folder after five seconds, or if name is "", the folder gets a new path.
//
// Claim also removes the folders of runners that were killed; a live runner holds a lock in its
// folder. Before it removes a folder, Claim calls the function bury, if it is not nil, to kill the
// processes that still work there. If bury fails, the folder stays until the next call of Claim.
//
// The function release removes the new folder, in which no process may work any more.
func Claim(ctx context.Context, root, name string, bury func(folder string) error) (folder string, release func() error, err error) {
	own := filepath.Join(root, "box-"+digest(name))
	for until := time.Now().Add(settleTime); name != "" && time.Now().Before(until); {
		folder, release, err = claim(ctx, root, func() (string, error) { return own, os.Mkdir(own, 0o755) }, bury)
		if !errors.Is(err, fs.ErrExist) {
			return folder, release, err
		}
		select {
		case <-ctx.Done():
			return "", nil, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return claim(ctx, root, func() (string, error) { return os.MkdirTemp(root, "box-") }, bury)
}

func claim(ctx context.Context, root string, mkdir func() (string, error), bury func(folder string) error) (folder string, release func() error, err error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", nil, fmt.Errorf("make a folder for workspaces: %w", err)
	}
	// This lock keeps other calls of Claim from seeing the new folder before the folder's own lock
	// is held.
	unlock, err := lock(ctx, filepath.Join(root, "lock"), unix.LOCK_EX, func() {})
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	others, err := filepath.Glob(filepath.Join(root, "box-*"))
	if err != nil {
		return "", nil, err
	}
	for _, other := range others {
		if _, ours := claimed.Load(other); ours {
			continue
		}
		if done, held, err := tryLock(filepath.Join(other, "alive"), unix.LOCK_EX); err == nil && !held {
			if bury == nil || bury(other) == nil {
				_ = os.RemoveAll(other) // after an error, the next call removes it
			}
			done()
		}
	}
	folder, err = mkdir()
	if err != nil {
		return "", nil, err
	}
	if err := os.Chmod(folder, 0o755); err != nil { // servers may run as another user
		return "", nil, err
	}
	mine, _, err := tryLock(filepath.Join(folder, "alive"), unix.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	claimed.Store(folder, true)
	return folder, func() error {
		defer mine()
		defer claimed.Delete(folder)
		return os.RemoveAll(folder)
	}, nil
}
