package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

// renewAfter is the age at which an unchanged snapshot is saved again. So a sweep by age
// does not delete a snapshot that is in use.
const renewAfter = 24 * time.Hour

// Config configures a [Keeper]. Store and Key are required.
type Config struct {
	Store Store
	// Generation is the generation of the box; see [Store].
	Generation int64
	// Key returns the key in the Store for an owner's snapshot.
	Key    func(owner string) string
	Limits Limits
	Log    *slog.Logger // nil for none
}

// Keeper keeps the workspaces of the processes of one box. It knows a process by the name
// that the provisioner gives it. It keeps each workspace for an owner: the process itself,
// or a principal with several processes, which then share a snapshot. Calls for one
// process must follow one another; calls for different processes may run at the same time.
type Keeper struct {
	cfg Config
	log *slog.Logger

	mu   sync.Mutex
	kept map[string]*kept
}

// kept is the state of one workspace.
type kept struct {
	base  tree      // the workspace as it was staged
	last  tree      // the workspace when the Keeper last restored, compared or saved it
	saved time.Time // when the snapshot with the state last was saved; zero for none
	stale bool      // the saved snapshot differs from the workspace, even if last does not
	open  bool      // a process has worked in the workspace since the state last
}

// NewKeeper makes a Keeper. It does no I/O.
func NewKeeper(c Config) *Keeper {
	c.Limits = c.Limits.withDefaults()
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{cfg: c, log: log, kept: map[string]*kept{}}
}

// Restore puts the newest snapshot of owner into the workspace that was staged for a
// process. If the workspace was restored before, and Leave was not called since, Restore
// only notes what staging has changed. After an error the caller must not use the
// workspace, but remove it and stage it anew.
func (k *Keeper) Restore(ctx context.Context, process, owner, workspace string) error {
	w := k.take(process) // if this call fails, the next Restore begins anew
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return fmt.Errorf("restore the workspace: %w", err)
	}
	defer func() { _ = root.Close() }() // root checks every write
	staged, err := scan(ctx, root, k.cfg.Limits)
	if limit := (*LimitError)(nil); w != nil && errors.As(err, &limit) {
		w.open = true // a workspace too large to save can still be used
		k.keep(process, w)
		return nil
	}
	if err != nil {
		return fmt.Errorf("restore the workspace: %w", err)
	}
	if w != nil {
		if err := w.prepareUsed(root, staged); err != nil {
			return fmt.Errorf("restore the workspace: %w", err)
		}
		k.keep(process, w)
		return nil
	}
	w = &kept{base: staged, last: maps.Clone(staged), open: true}
	if err := k.get(ctx, process, owner, root, w); err != nil {
		return fmt.Errorf("restore the workspace: %w", err)
	}
	k.keep(process, w)
	return nil
}

// prepareUsed prepares a workspace in which another process has worked before.
func (w *kept) prepareUsed(root *os.Root, staged tree) error {
	if w.open {
		// The previous process was interrupted and its changes were not compared. The
		// Keeper cannot tell those changes from the changes of staging, so it takes all
		// of them for the process's own.
		w.stale = true
		return nil
	}
	if err := w.removeAgain(root, staged); err != nil {
		return err
	}
	w.restaged(staged)
	w.open = true
	return nil
}

// removeAgain removes entries that the previous process had removed and staging has put
// back. It leaves entries that are different now. Unpacking a snapshot does the same.
func (w *kept) removeAgain(root *os.Root, now tree) error {
	names := now.names()
	slices.Reverse(names)
	for _, name := range names {
		e := now[name]
		was, staged := w.base[name]
		_, stayed := w.last[name]
		if stayed || !staged || was.mode != e.mode || was.size != e.size || was.link != e.link {
			continue
		}
		err := root.Remove(name)
		if err != nil && !e.mode.IsDir() && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil {
			delete(now, name)
		}
	}
	return nil
}

// restaged notes what staging has changed since the previous process ended. These changes
// are not the process's own.
func (w *kept) restaged(now tree) {
	for name, e := range now {
		if was, ok := w.last[name]; !ok || !was.same(e) {
			w.base[name] = e // also one that was no longer there
			w.stale = true
		}
	}
	for name := range w.last {
		if _, ok := now[name]; !ok {
			delete(w.base, name)
			w.stale = true
		}
	}
	w.last = now
}

// get unpacks the newest snapshot, if there is one.
func (k *Keeper) get(ctx context.Context, process, owner string, root *os.Root, w *kept) error {
	begun := time.Now()
	archive, saved, err := k.cfg.Store.Get(ctx, k.cfg.Key(owner), k.cfg.Generation)
	if errors.Is(err, ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }() // only read
	if err := unpack(ctx, source{archive}, root, k.cfg.Limits); err != nil {
		return err
	}
	if w.last, err = scan(ctx, root, k.cfg.Limits); err != nil {
		return err
	}
	w.saved = saved
	k.log.Info("workspace restored", "process", process, "saved", saved.UTC(), "ms", time.Since(begun).Milliseconds())
	return nil
}

// Save saves the changes of a process for owner. The process, and all that it had
// started, must have ended. A workspace without changes is not saved again before
// renewAfter. After an error the previous snapshot is still there. The error wraps a
// [*LimitError], [ErrStale], or an error of the store.
func (k *Keeper) Save(ctx context.Context, process, owner, workspace string) error {
	w := k.of(process)
	if w == nil {
		return nil // it was never restored, so its changes are unknown
	}
	begun := time.Now()
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return fmt.Errorf("save the workspace: %w", err)
	}
	defer func() { _ = root.Close() }() // only read
	now, err := scan(ctx, root, k.cfg.Limits)
	if err != nil {
		return fmt.Errorf("save the workspace: %w", err)
	}
	w.open = false
	if !w.due(now) {
		w.last = now // entries that are never saved may have changed
		return nil
	}
	c, err := compare(w.base, now, k.cfg.Limits)
	if err == nil && w.saved.IsZero() && len(c.put)+len(c.gone) == 0 {
		w.last = now
		return nil
	}
	if err == nil {
		err = k.cfg.Store.Put(ctx, k.cfg.Key(owner), k.cfg.Generation, func(to io.Writer) error {
			return pack(ctx, to, root, now, c)
		})
	}
	if err != nil {
		w.stale = true
		w.last = now // so the next Save can still tell the changes of staging from those of the process
		return fmt.Errorf("save the workspace: %w", err)
	}
	w.last, w.saved, w.stale = now, time.Now(), false
	k.log.Info("workspace saved", "process", process, "files", c.stats.files, "gone", c.stats.gone,
		"bytes", c.stats.bytes, "left_out", c.stats.leftOut, "ms", time.Since(begun).Milliseconds())
	return nil
}

// due reports whether the workspace has to be saved.
func (w *kept) due(now tree) bool {
	return w.stale || !w.last.same(now) || !w.saved.IsZero() && time.Since(w.saved) > renewAfter
}

// Leave tells the Keeper that the workspace of a process is removed. Its next workspace is
// a fresh one.
func (k *Keeper) Leave(process string) { k.take(process) }

// Forget deletes the snapshot of an owner that has ended for good. It also forgets the
// workspace of the process with that name.
func (k *Keeper) Forget(ctx context.Context, owner string) error {
	k.take(owner)
	return k.cfg.Store.Delete(ctx, k.cfg.Key(owner), k.cfg.Generation)
}

func (k *Keeper) of(process string) *kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept[process]
}

// take returns the state of a workspace, nil if there is none, and forgets it.
func (k *Keeper) take(process string) *kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.kept[process]
	delete(k.kept, process)
	return w
}

func (k *Keeper) keep(process string, w *kept) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept[process] = w
}
