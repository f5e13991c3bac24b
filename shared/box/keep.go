package box

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// keeping restores the workspace of a process before the process starts, and saves it after the
// process has ended.
type keeping struct {
	group     *group
	workspace string         // the folder to save after the end of the process, "" for none
	staged    string         // a file that lists what the provisioner has put into the workspace
	atWork    bool           // the process had open requests when the box told it to end
	given     processSecrets // the principal's secrets that the process got
}

// restore returns the function that fills a new workspace with the files that the [Keeper] has
// stored. Without a Keeper it returns nil.
func (k *keeping) restore() provision.Restore {
	if k.group.box.server.Keeper == nil {
		return nil
	}
	return func(ctx context.Context, workspace string) ([]string, error) {
		k.group.box.mu.Lock()
		owner := k.owner()
		k.group.box.mu.Unlock()
		return k.group.box.server.Keeper.Restore(ctx, k.group.id, owner, workspace)
	}
}

// save saves the workspace of a process that has ended. If intact is false, a file may be half
// written, and save saves nothing.
func (k *keeping) save(intact bool) {
	b, name := k.group.box, k.group.id
	b.mu.Lock()
	workspace, staged, owner := k.workspace, k.staged, k.owner()
	if k.over() {
		workspace = ""
	}
	b.mu.Unlock()
	log := b.log.With("server", b.server.Name, "process", name)
	if err := k.given.clear(); err != nil {
		workspace = ""
		log.Warn("workspace not saved, because the files of its principal's secrets cannot be removed; the earlier snapshot remains", "error", err)
	}
	switch {
	case workspace == "":
	case !intact:
		log.Warn("workspace not saved, because its process failed; the earlier snapshot remains")
	default:
		try := func() error {
			ctx, done := context.WithTimeout(b.saves, saveTime)
			defer done()
			return b.server.Keeper.Save(ctx, name, owner, workspace, staged)
		}
		err := try()
		for (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) && storage.Rest(b.saves, time.Second) == nil {
			err = try() // until the disk has room, the box stays awake
		}
		if err != nil {
			log.Warn("workspace not saved; the earlier snapshot remains", "error", err)
			return
		}
		k.leave()
	}
}

// leave removes the local copy of a saved workspace if all sessions of a principal share the saved
// one. The next process must not use the local copy, because another process of the principal may
// have saved a later workspace.
func (k *keeping) leave() {
	b, name := k.group.box, k.group.id
	b.mu.Lock()
	own := k.owner() == name
	b.mu.Unlock()
	if own {
		return
	}
	b.server.Keeper.Leave(name)
	if err := b.server.Provisioner.Remove(name); err != nil {
		b.log.Warn("workspace not removed", "server", b.server.Name, "process", name, "error", err)
	}
}

// owner returns the name under which the workspace is kept; see [Keeper].
func (k *keeping) owner() string {
	g := k.group
	if s := g.speaker; g.id == s.id {
		return g.box.server.Kept.Name(s.id, s.principal)
	}
	return g.id
}

// over reports whether the session of the process has ended for good.
func (k *keeping) over() bool {
	return slices.ContainsFunc(k.group.members, func(s *session) bool { return s.over })
}
