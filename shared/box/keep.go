package box

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

// saveTime limits how long the box takes to save a workspace. Only the next process of
// the session waits for the save, and the box, which does not sleep before.
const saveTime = 2 * time.Minute

// Keeper keeps the workspaces of processes while their box sleeps. owner is the name
// under which a workspace is kept: the name of the process, or "principal-" and a hash.
// Several processes may share an owner of the second kind. The box makes the calls for
// one process one after the other.
type Keeper interface {
	// Restore puts what is kept for owner into the workspace that was staged for a
	// process. If it fails, the box removes the workspace.
	Restore(ctx context.Context, process, owner, workspace string) error
	// Save keeps for owner what a process has changed; the process has ended. If Save
	// fails, what was kept before must still be there.
	Save(ctx context.Context, process, owner, workspace string) error
	// Leave says that the workspace of a process is removed. What is kept stays.
	Leave(process string)
	// Forget removes what is kept for owner. The process of the same name is over.
	Forget(ctx context.Context, owner string) error
}

// keeping restores the workspace of a process and saves it.
type keeping struct {
	p         *process
	workspace string // the folder to save when the process has ended, "" for none
	atWork    bool   // the process had requests when the box told it to end
}

// restore brings the staged workspace of a process to where the process before has left
// it. It returns the folder to save later, "" for none.
func (k *keeping) restore(ctx context.Context, l provision.Launch) (string, error) {
	p := k.p
	s := p.box.server
	if s.Keeper == nil || l.Workspace == "" {
		return "", nil
	}
	p.box.mu.Lock()
	owner := k.owner()
	p.box.mu.Unlock()
	err := s.Keeper.Restore(ctx, p.g.id, owner, l.Workspace)
	if err == nil {
		return l.Workspace, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	if failed := s.Provisioner.Remove(p.g.id); failed != nil {
		err = fmt.Errorf("%w; and it is not removed: %w", err, failed)
	}
	return "", &provision.Error{Phase: provision.SessionCreate, Err: err}
}

// save saves the workspace of a process that has ended. It ends the open requests first.
// It skips a process that was broken off at work: a file may be half written.
func (k *keeping) save() {
	p := k.p
	b := p.box
	b.mu.Lock()
	p.endRequests(p.obituary())
	workspace, inOrder, owner := k.workspace, k.inOrder(), k.owner()
	if k.over() {
		workspace = ""
	}
	b.mu.Unlock()
	log := b.log.With("server", b.server.Name, "process", p.g.id)
	switch {
	case workspace == "":
	case !inOrder:
		log.Warn("workspace not saved: its process was broken off; the snapshot before stays")
	default:
		ctx, done := context.WithTimeout(b.saves.ctx, saveTime)
		defer done()
		err := b.server.Keeper.Save(ctx, p.g.id, owner, workspace)
		if err != nil {
			log.Warn("workspace not saved; the snapshot before stays", "error", err)
			return
		}
		if owner == p.g.id {
			return
		}
		// Another process of the owner may save before this one starts again.
		b.server.Keeper.Leave(p.g.id)
		if err := b.server.Provisioner.Remove(p.g.id); err != nil {
			log.Warn("workspace not removed", "error", err)
		}
	}
}

// owner returns the name under which the workspace is kept.
func (k *keeping) owner() string {
	g := k.p.g
	if s := g.speaker; g.id == s.id {
		return g.box.server.Kept.Name(s.id, s.principal)
	}
	return g.id
}

// over reports whether the session of the process has ended.
func (k *keeping) over() bool {
	return slices.ContainsFunc(k.p.g.members, func(s *session) bool { return s.over })
}

// inOrder reports whether the process exited with code 0, or was stopped as asked. If a
// signal ended it, it must have had nothing to do when it was asked.
func (k *keeping) inOrder() bool {
	e, _ := k.p.exit()
	if e.Code != nil && *e.Code == 0 {
		return true
	}
	return k.p.asked() && (e.Signal == "" || !k.atWork)
}
