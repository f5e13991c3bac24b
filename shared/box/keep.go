package box

import (
	"context"
	"fmt"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

// keeping restores the workspace of a process and saves it.
type keeping struct {
	box       *boxCore
	audience  *audience
	workspace string // the folder to save when the process has ended, "" for none
	atWork    bool   // the process had open requests when the box told it to end
	given     given
}

// restore gives the staged workspace the files of the previous process. It returns the
// folder to save later, "" for none.
func (k *keeping) restore(ctx context.Context, l provision.Launch) (string, error) {
	s, name := k.box.server, k.audience.id
	if s.Keeper == nil || l.Workspace == "" {
		return "", nil
	}
	k.box.mu.Lock()
	owner := k.owner()
	k.box.mu.Unlock()
	err := s.Keeper.Restore(ctx, name, owner, l.Workspace)
	if err == nil {
		return l.Workspace, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	if failed := s.Provisioner.Remove(name); failed != nil {
		err = fmt.Errorf("%w; and it is not removed: %w", err, failed)
	}
	return "", &provision.Error{Phase: provision.SessionCreate, Err: err}
}

// save saves the workspace of a process that has ended. If inOrder is false, save skips
// the workspace, because a file may be half written.
func (k *keeping) save(inOrder bool) {
	b, name := k.box, k.audience.id
	b.mu.Lock()
	workspace, owner := k.workspace, k.owner()
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
	case !inOrder:
		log.Warn("workspace not saved, because its process failed; the earlier snapshot remains")
	default:
		ctx, done := context.WithTimeout(b.saves, saveTime)
		defer done()
		err := b.server.Keeper.Save(ctx, name, owner, workspace)
		if err != nil {
			log.Warn("workspace not saved; the earlier snapshot remains", "error", err)
			return
		}
		if owner == name {
			return
		}
		// This workspace is of no further use: another process of the owner may save
		// before this one starts again.
		b.server.Keeper.Leave(name)
		if err := b.server.Provisioner.Remove(name); err != nil {
			log.Warn("workspace not removed", "error", err)
		}
	}
}

// owner returns the name under which the workspace is kept.
func (k *keeping) owner() string {
	a := k.audience
	if s := a.speaker; a.id == s.id {
		return k.box.server.Kept.Name(s.id, s.principal)
	}
	return a.id
}

// over reports whether the session of the process has ended.
func (k *keeping) over() bool {
	return slices.ContainsFunc(k.audience.members, func(s *session) bool { return s.over })
}
