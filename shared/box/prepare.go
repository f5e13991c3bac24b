package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// startCause is the reason why a start is given up before the process runs.
type startCause string

func (c startCause) Error() string { return string(c) }

const (
	errStartup = startCause("it did not end within startup_timeout_sec")
	errStopped = startCause("the process is not wanted any more")
)

// awaitTurn waits until the previous processes have ended, because two processes of a session
// would write the same files. It also waits until the process is needed. awaitTurn returns false
// if the process was stopped meanwhile.
func (r *processRun) awaitTurn() bool {
	for _, gone := range r.before {
		select {
		case <-gone:
		case <-r.p.wanted.Done():
		}
	}
	select {
	case <-r.p.nap.needed:
	case <-r.p.wanted.Done():
	}
	return r.p.wanted.Err() == nil && r.awaitStart()
}

// awaitStart waits for the pause that follows failed starts. awaitStart returns false if the
// process was stopped meanwhile.
func (r *processRun) awaitStart() bool {
	b := r.p.box
	b.mu.Lock()
	wait, failed := b.starts.wait(), b.starts.failed
	b.mu.Unlock()
	if wait == 0 {
		return true
	}
	r.progress(provision.Progress{Text: fmt.Sprintf("waiting %s to start the server again: it failed %d times", wait.Round(time.Second), failed)})
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-r.p.wanted.Done():
		return false
	case <-t.C:
		return true
	}
}

// prepare lets the provisioner prepare the start, and finds the program to execute. prepare gives
// up when the process is stopped, or after the startup timeout.
func (r *processRun) prepare() (launch, error) {
	p := r.p
	s := p.box.server
	if s.Provisioner == nil {
		placed := provision.Launch{Cwd: s.Cwd}
		s, err := r.withSecrets(s, placed)
		if err != nil {
			return launch{}, err
		}
		return r.confine(s, placed)
	}
	ctx, done := context.WithTimeoutCause(p.wanted, s.StartupTimeout, errStartup)
	defer done()
	l, err := s.Provisioner.Provision(ctx, p.group.id, r.progress, p.keeping.restore())
	if err != nil {
		return launch{}, err
	}
	own, err := r.withSecrets(s.staged(l), l)
	if err != nil {
		return launch{}, err
	}
	ready, err := r.confine(own, l)
	ready.unrun = l.Unrun
	if s.Keeper != nil {
		ready.keep, ready.staged = l.Workspace, l.Staged
	}
	return ready, err
}

// progress reports one step of the start to the sink, and to waiting clients that sent a progress
// token.
func (r *processRun) progress(step provision.Progress) {
	p := r.p
	b := p.box
	text := b.hide.Text(step.Text)
	p.output.log.Note("%s", text)
	b.mu.Lock()
	defer b.mu.Unlock()
	st := p.status(Staging, nil)
	st.Detail = text
	log := p.logOf(st)
	p.group.speaker.tell(pendingOutput{call: func(k Sink) {
		log.Info("process", "phase", string(step.Phase), "step", st.Detail)
		k.Process(st)
	}})
	// Progress values have to grow, and those of the server begin at zero or above. The values of
	// the box are therefore negative, and approach zero.
	r.steps++
	at := -1 / float64(uint64(1)<<min(r.steps, 40))
	for _, q := range p.conv.inOrder() {
		if q.token == nil {
			continue
		}
		params, err := json.Marshal(map[string]any{"progressToken": q.token, "progress": at, "message": st.Detail})
		if err == nil {
			q.stream.event(wire.NewNotification(wire.NotifyProgress, params), false)
		}
	}
}

// confine finds the program of a prepared process, and makes the sandbox in which it will start.
func (r *processRun) confine(s Server, placed provision.Launch) (launch, error) {
	p := r.p
	clear := r.mark(&s)
	if s.Sandbox == nil {
		l, err := s.launch()
		l.Clear, l.Guard = clear, s.Guard
		return l, err
	}
	place, err := s.Sandbox(p.group.id, placed)
	if err != nil {
		return launch{}, err
	}
	log := p.box.log.With("server", s.Name)
	p.box.lacks.Do(func() {
		for _, l := range place.Lacks() {
			log.Warn("the sandbox does without", "guard", string(l.Guard), "why", l.Why)
		}
	})
	base := map[string]string{}
	maps.Copy(base, s.Base)
	maps.Copy(base, place.Environment())
	s.Base = base
	l, err := s.launch()
	l.Start, l.Guard = place.Start, s.Guard
	l.Clear = func() {
		clear()
		p.output.over = place.Exceeded()
		if err := place.End(); err != nil {
			log.Warn("the sandbox is not cleared", "process", p.group.id, "error", err)
		}
	}
	return l, err
}

// withSecrets returns the server with the principal's secrets in its environment. A secret that
// the server reads from a file is written to its file.
func (r *processRun) withSecrets(s Server, placed provision.Launch) (Server, error) {
	p := r.p
	if len(s.Principal) == 0 {
		return s, nil
	}
	p.box.mu.Lock()
	g := &p.keeping.given
	g.secrets = map[string]storage.Secret{}
	maps.Copy(g.secrets, p.group.secrets)
	secrets := maps.Clone(g.secrets)
	p.box.mu.Unlock()
	var pairs []string
	for _, name := range s.Principal {
		if v := secrets[name].Value; v != "" {
			pairs = append(pairs, principalBegin+name+"}", v)
		}
		if !s.uses(fileBegin + name) {
			continue
		}
		if g.folder == "" {
			folder, err := newFolder(placed)
			if err != nil {
				return s, err
			}
			p.box.mu.Lock()
			g.folder = folder
			p.box.mu.Unlock()
		}
		if err := g.write(name, secrets[name].Value); err != nil {
			return s, err
		}
		pairs = append(pairs, fileBegin+name+"}", g.path(name))
	}
	fill := strings.NewReplacer(pairs...)
	env := map[string]string{}
	for name, value := range s.Env {
		if value = fill.Replace(value); !strings.Contains(value, principalBegin) {
			env[name] = value
		}
	}
	s.Env = env
	return s, nil
}

// mark adds the variable [proc.MarkEnv] to the environment of s, with a value that no other
// process has. The function clear kills every process with that value.
func (r *processRun) mark(s *Server) (clear func()) {
	p := r.p
	if s.Mark == "" {
		return func() {}
	}
	own := fmt.Sprintf("%s/%d", s.Mark, p.box.marks.Add(1))
	env := map[string]string{}
	maps.Copy(env, s.Env)
	env[proc.MarkEnv] = own
	s.Env = env
	return func() {
		if err := proc.EndMarked(own); err != nil {
			p.box.log.Warn("what a process has started is still there", "server", s.Name, "process", p.group.id, "error", err)
		}
	}
}

// closedWay explains why the sandbox's user may not execute a program: it names the folder or file
// that other users may not enter or execute.
func closedWay(err error) string {
	if of, ok := errors.AsType[*fs.PathError](err); ok {
		words := append(Shebang(of.Path), "")
		for _, program := range []string{words[0], of.Path} {
			real, err := filepath.EvalSymlinks(program)
			if err != nil || !filepath.IsAbs(real) {
				continue
			}
			for at := real; at != "/"; at = filepath.Dir(at) {
				if info, err := os.Stat(at); err == nil && info.Mode()&0o001 == 0 {
					return fmt.Sprintf("other users may not use %s, on the way to %s: name another program, such as one of /usr/bin, put it below host_path, or chmod o+rx %[1]s", at, real)
				}
			}
		}
	}
	return "the program and its interpreter, and the folders above them, must be open to other users (chmod o+rx), in the PATH or below host_path"
}

// Shebang returns the words of the first line of a script: its interpreter and perhaps an
// argument. Shebang returns nil if the file is no script, or cannot be read.
func Shebang(script string) []string {
	f, err := os.Open(script)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // nothing was written through it
	start := make([]byte, 256)
	n, _ := io.ReadFull(f, start) // a file that is shorter than start is no error
	line, _, _ := strings.Cut(string(start[:n]), "\n")
	if line, ok := strings.CutPrefix(line, "#!"); ok {
		return strings.Fields(line)
	}
	return nil
}

// startFault returns the error for the clients of a process that cannot be started because of err.
func (b *Box) startFault(err error) *fault {
	if full, ok := errors.AsType[guard.FullError](err); ok {
		f := b.server.fault(PhaseSessionCreate, "cannot be started: %s", full.Error())
		f.data.RetryAfter = full.RetryAfter().Seconds()
		return f
	}
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return b.server.fault(PhaseSessionCreate, "cannot be started: %s", b.hide.Text(err.Error()))
	}
	e, ok := errors.AsType[*provision.Error](err)
	if !ok {
		message := err.Error()
		if b.server.Sandbox != nil && errors.Is(err, fs.ErrPermission) {
			message += " in its sandbox: " + closedWay(err)
		}
		return b.server.fault(PhaseProcessStart, "cannot be started: %s", b.hide.Text(message))
	}
	// The output of an install may have been cut in the middle of a secret.
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
