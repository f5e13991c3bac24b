package box

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// startCause is why a start is given up before there is a process.
type startCause string

func (c startCause) Error() string { return string(c) }

const (
	errStartup = startCause("it did not end within startup_timeout_sec")
	errStopped = startCause("the process is not wanted any more")
)

// prepare has the stager put everything in place, and resolves what is left to be
// executed. It is given up when the process is to end, or has no time left.
func (p *process) prepare() (launch, error) {
	p.begun = time.Now()
	s := p.box.server
	if s.Provisioner == nil {
		return p.confine(s, provision.Launch{Cwd: s.Cwd})
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	ctx, done := context.WithTimeoutCause(ctx, s.StartupTimeout, errStartup)
	defer done()
	go func() {
		select {
		case <-p.halt:
			cancel(errStopped)
		case <-ctx.Done():
		}
	}()
	l, err := s.Provisioner.Provision(ctx, p.g.id, p.progress)
	if err != nil {
		return launch{}, err
	}
	keep, err := p.restore(ctx, l)
	if err != nil {
		return launch{}, err
	}
	ready, err := p.confine(s.staged(l), l)
	ready.keep, ready.unrun = keep, l.Unrun
	return ready, err
}

// progress tells of one step of the start: the sink, and the clients that wait for
// the process and gave a progress token.
func (p *process) progress(step provision.Progress) {
	b := p.box
	text := b.hide.Text(step.Text)
	p.log.Note("%s", text)
	b.mu.Lock()
	defer b.mu.Unlock()
	st := p.status(Staging, nil)
	st.Detail = text
	p.g.speaker.tell(told{call: func(k Sink) {
		b.log.Info("process", "server", b.server.Name, "session_id", st.Session, "state", string(Staging), "step", st.Detail)
		k.Process(st)
	}})
	// Progress has to grow, and the server's own begins at zero or above.
	p.steps++
	at := -1 / float64(uint64(1)<<min(p.steps, 40))
	for _, r := range p.conv.inOrder() {
		if r.token == nil {
			continue
		}
		params, err := json.Marshal(map[string]any{"progressToken": r.token, "progress": at, "message": st.Detail})
		if err == nil {
			p.event(r.stream, wire.NewNotification(wire.NotifyProgress, params), false)
		}
	}
}

// startFault is why a process cannot be started.
func (b *Box) startFault(err error) *fault {
	if confined := (*sandbox.Error)(nil); errors.As(err, &confined) {
		return b.server.fault(PhaseSessionCreate, "cannot be started: %s", b.hide.Text(err.Error()))
	}
	var e *provision.Error
	if !errors.As(err, &e) {
		message := err.Error()
		if b.server.Sandbox != nil && errors.Is(err, fs.ErrPermission) {
			message += " in its sandbox: the program and its interpreter, and the folders above them, must be open to other users (chmod o+rx), in the PATH or below host_path"
		}
		return b.server.fault(PhaseProcessStart, "cannot be started: %s", b.hide.Text(message))
	}
	// The end of what an install said may begin in the middle of a secret.
	said := b.hide.End(b.hide.Begin(b.hide.Text(e.Stderr)))
	message := e.Error()
	if e.Stderr != "" {
		message = strings.TrimSuffix(strings.Replace(message, e.Stderr, "", 1), ": ")
	}
	f := b.server.fault(Phase(e.Phase), "cannot be started: %s", b.hide.Text(message))
	f.words, f.data.ExitCode, f.data.Stderr = said, e.ExitCode, said
	if errors.Is(err, errStartup) {
		f.data.Limit, f.data.Setting = b.server.StartupTimeout.Seconds(), "startup_timeout_sec"
	}
	return f
}
