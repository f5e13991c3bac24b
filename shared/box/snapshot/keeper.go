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

// renewAfter is how old a snapshot is saved again in which nothing has changed, so
// that what sweeps by age does not take one that is used.
const renewAfter = 24 * time.Hour

// Config is what a [Keeper] works with. Store and Key are needed.
type Config struct {
	Store Store
	// Generation is that of the box; see [Store].
	Generation int64
	// Key names the snapshot of an owner in the Store.
	Key    func(owner string) string
	Limits Limits
	Log    *slog.Logger // nil for none
}

// Keeper keeps the workspaces of the processes of one box, each named as its stager
// names it, for an owner: the process itself, or somebody who has several, which then
// share a snapshot. Calls for one process must follow on one another; those for
// several need not.
type Keeper struct {
	cfg Config
	log *slog.Logger

	mu   sync.Mutex
	kept map[string]*kept
}

// kept is what is known of one workspace.
type kept struct {
	base  tree      // as it was staged
	last  tree      // as it was when a snapshot was restored or saved last
	saved time.Time // of the snapshot that last shows; zero for none
	stale bool      // what was saved is not what there is, whatever last says
	open  bool      // a process has worked in it since last
}

// NewKeeper makes a Keeper. It touches nothing yet.
func NewKeeper(c Config) *Keeper {
	c.Limits = c.Limits.withDefaults()
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{cfg: c, log: log, kept: map[string]*kept{}}
}

// Restore puts the newest snapshot of owner into the workspace that was staged for a
// process. Where one was restored before, and not left since, there is nothing to put
// back, and it only notes what staging has changed. After an error
// the workspace must not be used but removed and staged anew.
func (k *Keeper) Restore(ctx context.Context, process, owner, workspace string) error {
	w := k.take(process) // after an error it is begun anew
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return fmt.Errorf("restore the workspace: %w", err)
	}
	defer func() { _ = root.Close() }() // every write is checked where it is made
	staged, err := scan(ctx, root, k.cfg.Limits)
	if limit := (*LimitError)(nil); w != nil && errors.As(err, &limit) {
		w.open = true // too much to be saved is no reason not to work on in it
		k.keep(process, w)
		return nil
	}
	if err != nil {
		return fmt.Errorf("restore the workspace: %w", err)
	}
	if w != nil {
		if err := w.again(root, staged); err != nil {
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

// again goes on with a workspace that another process has worked in.
func (w *kept) again(root *os.Root, staged tree) error {
	if w.open {
		// It was broken off, and nobody has looked what it left. So nobody can tell
		// what it has changed from what staging has: all of it is taken for its own.
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

// removeAgain removes what the process before had removed and staging has put back,
// unless it is something else by now. It is what unpacking a snapshot does as well.
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

// restaged notes what staging has changed since the process before ended: that is
// not the process's.
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

// Save brings what a process has changed to the store, for owner. The process must have ended, with all
// that it had started. A workspace in which nothing has changed is not saved. After
// an error the snapshot before is still there: a [*LimitError], [ErrStale], or that
// of the store.
func (k *Keeper) Save(ctx context.Context, process, owner, workspace string) error {
	w := k.of(process)
	if w == nil {
		return nil // it was never restored, so nobody knows what has changed
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
		w.last = now // what a process may not keep may have changed
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
		w.last = now // the next look must tell what staging changes from what the process did
		return fmt.Errorf("save the workspace: %w", err)
	}
	w.last, w.saved, w.stale = now, time.Now(), false
	k.log.Info("workspace saved", "process", process, "files", c.stats.files, "gone", c.stats.gone,
		"bytes", c.stats.bytes, "left_out", c.stats.leftOut, "ms", time.Since(begun).Milliseconds())
	return nil
}

// due says whether there is something to save.
func (w *kept) due(now tree) bool {
	return w.stale || !w.last.same(now) || !w.saved.IsZero() && time.Since(w.saved) > renewAfter
}

// Leave says that the workspace of a process is removed: its next one is a fresh one.
func (k *Keeper) Leave(process string) { k.take(process) }

// Forget deletes the snapshot of an owner that is over, and leaves the workspace of
// the process of the same name.
func (k *Keeper) Forget(ctx context.Context, owner string) error {
	k.take(owner)
	return k.cfg.Store.Delete(ctx, k.cfg.Key(owner), k.cfg.Generation)
}

func (k *Keeper) of(process string) *kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept[process]
}

// take returns what is known of a workspace, which is nil if nothing is, and forgets
// it.
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
