package box

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

// saveTime bounds how long a workspace is saved. Nobody waits for it but the next
// process of the session, and the box, which does not sleep before.
const saveTime = 2 * time.Minute

// Keeper keeps the workspaces of processes while their box sleeps. owner names what is
// kept: it is the process, or "principal-" and a hash, for which then several
// processes may come. Calls for one process follow on one another.
type Keeper interface {
	// Restore puts what is kept for owner into the workspace that was staged for a
	// process. A workspace it fails with is removed.
	Restore(ctx context.Context, process, owner, workspace string) error
	// Save keeps for owner what a process, which has ended, has changed. When it fails
	// what was kept before must still be.
	Save(ctx context.Context, process, owner, workspace string) error
	// Leave says that the workspace of a process is gone. What is kept stays.
	Leave(process string)
	// Forget removes what is kept for owner, whose process of the same name is over.
	Forget(ctx context.Context, owner string) error
}

// keeping restores the workspace of a process and saves it.
type keeping struct {
	p         *process
	workspace string // that is saved when the process has ended, "" for none
	atWork    bool   // the process had requests when its end was asked for
}

// restore brings the workspace of a process that is staged to where the one before
// has left it, and returns the folder that is to be saved, "" for none.
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

// save saves the workspace of a process that has ended, unless it was broken off in
// its work: what it was writing then may be half written. Its requests end before.
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
		// Until it is started again another process of the owner may save.
		b.server.Keeper.Leave(p.g.id)
		if err := b.server.Provisioner.Remove(p.g.id); err != nil {
			log.Warn("workspace not removed", "error", err)
		}
	}
}

// owner names what is kept of the workspace.
func (k *keeping) owner() string {
	g := k.p.g
	if s := g.speaker; g.id == s.id {
		return g.box.server.Kept.Name(s.id, s.principal)
	}
	return g.id
}

// over says that the process was of a session that has ended.
func (k *keeping) over() bool {
	return slices.ContainsFunc(k.p.g.members, func(s *session) bool { return s.over })
}

// inOrder says whether the process came to an end of its own, or had nothing to do
// when it was stopped.
func (k *keeping) inOrder() bool {
	e, _ := k.p.exit()
	if e.Code != nil && *e.Code == 0 {
		return true
	}
	return k.p.asked() && (e.Signal == "" || !k.atWork)
}
