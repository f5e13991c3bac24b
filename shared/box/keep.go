package box

import (
	"context"
	"fmt"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/stage"
)

// saveTime bounds how long a workspace is saved. Nobody waits for it but the next
// process of the session, and the box, which does not sleep before.
const saveTime = 2 * time.Minute

// Keeper keeps the workspaces of processes while their box sleeps. Calls for one
// process follow on one another.
type Keeper interface {
	// Restore puts what was kept of a process into the workspace that was staged for
	// it. A workspace it fails with is removed.
	Restore(ctx context.Context, process, workspace string) error
	// Save keeps what a process, which has ended, has changed. When it fails what was
	// kept before must still be.
	Save(ctx context.Context, process, workspace string) error
	// Forget removes what is kept of a process of a session that has ended.
	Forget(ctx context.Context, process string) error
}

// restore brings the workspace of a process that is staged to where the one before
// has left it, and returns the folder that is to be saved, "" for none.
func (p *process) restore(ctx context.Context, l stage.Launch) (string, error) {
	s := p.box.server
	if s.Keeper == nil || l.Workspace == "" {
		return "", nil
	}
	err := s.Keeper.Restore(ctx, p.s.id, l.Workspace)
	if err == nil {
		return l.Workspace, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	if failed := s.Stager.Remove(p.s.id); failed != nil {
		err = fmt.Errorf("%w; and it is not removed: %w", err, failed)
	}
	return "", &stage.Error{Phase: stage.SessionCreate, Err: err}
}

// keep saves the workspace of a process that has ended, unless it was broken off in
// its work: what it was writing then may be half written. Its requests end before.
func (p *process) keep() {
	b := p.box
	b.mu.Lock()
	p.endRequests(p.obituary())
	workspace, inOrder := p.workspace, p.inOrder()
	if p.s.over {
		workspace = ""
	}
	b.mu.Unlock()
	log := b.log.With("server", b.server.Name, "session", p.s.id)
	switch {
	case workspace == "":
	case !inOrder:
		log.Warn("workspace not saved: its process was broken off; the snapshot before stays")
	default:
		ctx, done := context.WithTimeout(b.saving, saveTime)
		defer done()
		if err := b.server.Keeper.Save(ctx, p.s.id, workspace); err != nil {
			log.Warn("workspace not saved; the snapshot before stays", "error", err)
		}
	}
}

// inOrder says whether the process came to an end of its own, or had nothing to do
// when it was stopped.
func (p *process) inOrder() bool {
	e, _ := p.exit()
	if e.code != nil && *e.code == 0 {
		return true
	}
	asked := p.stopping && (p.failed == nil || p.failed.data.Phase == PhaseBoxUnavailable)
	return asked && (e.signal == "" || !p.atWork)
}
