package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// renewAfter is the age at which a snapshot is saved again although nothing has changed, so that a
// removal of old snapshots, such as [Folder.Sweep], does not delete it while it is in use.
const renewAfter = 24 * time.Hour

// Config configures a [Keeper]. Store and Key are required.
type Config struct {
	Store Store
	// Generation is the argument gen of the calls of the Store.
	Generation int64
	// Key returns the key in the Store for an owner's snapshot.
	Key    func(owner string) string
	Limits Limits
	Log    *slog.Logger // nil for none
}

// Keeper saves and restores the workspaces of the processes of one box. The argument process is
// the name that the provisioner gives a process, and owner is the name under which its workspace
// is stored: that of the process, or of a principal whose processes share a snapshot. Calls for
// one process must follow one another; calls for different processes may run at the same time.
type Keeper struct {
	cfg    Config
	log    *slog.Logger
	folder *Folder // the Store, if it is one

	mu   sync.Mutex
	kept map[string]*kept
}

// kept is what the Store contains of one workspace.
type kept struct {
	last  changes   // the changes that were saved or restored last
	saved time.Time // when these changes were saved; zero for never
}

// NewKeeper makes a Keeper, without I/O.
func NewKeeper(c Config) *Keeper {
	c.Limits = c.Limits.withDefaults()
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	folder, _ := c.Store.(*Folder)
	return &Keeper{cfg: c, log: log, folder: folder, kept: map[string]*kept{}}
}

// Restore unpacks the newest snapshot of owner into the empty workspace of a process. Restore
// returns the names in the snapshot, including those of files that were removed. After an error
// the caller must not use the workspace.
func (k *Keeper) Restore(ctx context.Context, process, owner, workspace string) (names []string, err error) {
	begun := time.Now()
	k.Leave(process) // if Restore fails, this workspace must not be saved
	w := &kept{}
	archive, saved, err := k.cfg.Store.Get(ctx, k.cfg.Key(owner))
	switch {
	case errors.Is(err, ErrNone):
		err = nil
	case err == nil:
		defer func() { _ = archive.Close() }() // nothing was written
		w.saved = saved
		if w.last, err = unpack(ctx, archive, workspace, k.cfg.Limits); err == nil {
			k.log.Info("workspace restored", "process", process, "saved", saved.UTC(), "ms", time.Since(begun).Milliseconds())
		}
	}
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept[process] = w
	return append(w.last.put.names(), w.last.gone...), nil
}

// Save saves what a process has changed in its workspace. The argument record is a file with what
// the Provisioner has put into the workspace, "" for nothing. The process, and all that it has
// started, must have ended. If nothing has changed, Save writes nothing, unless the snapshot is
// older than a day. After an error the previous snapshot is still there. The error wraps a
// [*LimitError], [ErrStale], or an error of the store.
func (k *Keeper) Save(ctx context.Context, process, owner, workspace, record string) error {
	w := k.of(process)
	if w == nil {
		return nil // the workspace was never restored
	}
	begun := time.Now()
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return fmt.Errorf("save the workspace: %w", err)
	}
	defer func() { _ = root.Close() }() // nothing was written through it
	c, err := k.changed(ctx, root, record)
	if err == nil && c.same(w.last) && (w.saved.IsZero() || time.Since(w.saved) < renewAfter) {
		return nil
	}
	if err == nil {
		err = k.cfg.Store.Put(ctx, k.cfg.Key(owner), k.cfg.Generation, func(to io.Writer) error { return pack(ctx, to, root, c) })
	}
	if err != nil {
		return fmt.Errorf("save the workspace: %w", err)
	}
	w.last, w.saved = c, time.Now()
	k.log.Info("workspace saved", "process", process, "files", len(c.put), "gone", len(c.gone),
		"bytes", c.bytes, "left_out", c.leftOut, "ms", time.Since(begun).Milliseconds())
	return nil
}

// of looks up what the Store contains of a process's workspace: nil if the workspace was never
// restored.
func (k *Keeper) of(process string) *kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept[process]
}

// changed returns the differences between a workspace and the record of what was put there.
func (k *Keeper) changed(ctx context.Context, root *os.Root, record string) (changes, error) {
	base, err := staged(record)
	if err != nil {
		return changes{}, err
	}
	now, err := scan(ctx, root, k.cfg.Limits, false)
	if err != nil {
		return changes{}, err
	}
	return compare(base, now, k.cfg.Limits)
}

// Leave tells the Keeper that the workspace of a process is removed. Until the next Restore for the
// process, Save does nothing.
func (k *Keeper) Leave(process string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.kept, process)
}

// Forget deletes the snapshot of an owner that has ended for good. Forget also calls Leave for the
// process of that name.
func (k *Keeper) Forget(ctx context.Context, owner string) error {
	k.Leave(owner)
	return k.cfg.Store.Delete(ctx, k.cfg.Key(owner), k.cfg.Generation)
}
