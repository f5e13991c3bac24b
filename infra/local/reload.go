package local

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/watch"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// reloader applies changes of the servers file while the machine runs.
type reloader struct {
	m   *machine
	ctx context.Context // ends with the machine

	mu      sync.Mutex      // one reload at a time
	refused string          // the last error that was recorded; "" after the file was read without an error
	watched map[string]bool // servers whose sources are watched
}

// startReload watches the servers file and its files of variables, and also reads them after each
// signal on Config.Reload.
func (m *machine) startReload(ctx context.Context) error {
	r := &reloader{m: m, ctx: ctx}
	m.reload = r.reload
	reload := func() { _, _ = r.reload() } // it records both results itself
	r.watchSources(m.served())
	go watch.Files(ctx, lookAtFile, nil, func() []string { return m.servers.Load().Files() }, reload)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-m.cfg.Reload: // never, if Reload is nil
				reload()
				r.forget(m.servers.Load(), m.servers.Load().Names())
			}
		}
	}()
	return nil
}

// reload reads the servers file. If the file is valid and has changed, the machine serves the new
// servers from now on. After an error it goes on with the old ones. reload records each change as
// an event, and each error once.
func (r *reloader) reload() (serversfile.Changes, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.m.servers.Load()
	read, err := r.m.file.load()
	for _, w := range r.m.file.news() {
		r.m.log.Warn("the servers file", "why", w)
		if d := r.m.cfg.Display; d != nil {
			d.Say("warning: " + strings.TrimPrefix(w, filepath.Dir(r.m.cfg.Servers)+"/"))
		}
	}
	var changes serversfile.Changes
	if err == nil {
		read, changes = read.After(before, time.Now())
		if !bytes.Equal(read.Marshal(), before.Marshal()) {
			r.m.gate.take(read)
			if err = r.m.functions.Serve(read); err != nil {
				r.m.gate.take(before)
			}
		}
	}
	if err != nil {
		name, why := filepath.Base(r.m.cfg.Servers), brief(err)+"; what was there before is still served"
		between := ": "
		if errors.As(err, new(*serversfile.Error)) { // why begins with the place in the file
			between = ":"
		}
		r.m.file.breaks(name + between + why)
		if text := err.Error(); text != r.refused {
			r.refused = text
			r.m.recorder.Record(journal.Event{Kind: journal.ServersRefused, Name: name, Reason: why})
		}
		return changes, err
	}
	r.refused = ""
	r.m.file.breaks("")
	r.m.servers.Store(read)
	if changes.None() {
		return changes, nil
	}
	e := journal.Event{Kind: journal.ServersChanged, Name: filepath.Base(r.m.cfg.Servers), Detail: changes.String(), FileChange: journal.FileChange{Added: changes.Added, Removed: changes.Removed}}
	for _, changed := range changes.Changed {
		e.Changed = append(e.Changed, changed.Name)
	}
	r.m.recorder.Record(e)
	r.halt(changes.Removed, "the removal of the server")
	if len(changes.Changed)+len(changes.Removed) > 0 {
		go r.retire()
	}
	r.forget(before, changes.Removed)
	r.m.prepareTaken(slices.Concat(e.Added, e.Changed))()
	r.watchSources(e.Added)
	return changes, nil
}

// lookAtFile is the time between two looks at the servers file.
const lookAtFile = time.Second

// halt ends the processes of servers, once their calls have ended. The argument by is the reason,
// as clients read it. A server that is added later under one of these names gets new processes,
// even if its definition is the same.
func (r *reloader) halt(servers []string, by string) {
	if len(servers) == 0 {
		return
	}
	due, err := r.m.functions.Records().Due(r.ctx)
	for _, id := range due {
		if _, server := id.Parts(); slices.Contains(servers, server) {
			_, halted := r.m.functions.Operators().Halt(r.ctx, id, frame.Halt{By: by, In: drainWithin.Milliseconds()})
			err = errors.Join(err, halted)
		}
	}
	if err != nil {
		r.m.log.Warn("processes of servers are not told to end", "servers", servers, "by", by, "error", err)
	}
}

// forget deletes from the store what servers have answered to initialize, and their lists. What it
// cannot delete is compared with what the next process of the server answers.
func (r *reloader) forget(servers *serversfile.File, names []string) {
	if len(names) == 0 {
		return
	}
	store := r.m.functions.Records()
	tenants, err := api.Tenants(r.ctx, store, mostSeen)
	for _, name := range names {
		s, _ := servers.Server(name)
		for _, tenant := range tenants {
			err = errors.Join(err, sessions.Forget(r.ctx, store, tenant, name, s.RecordDigest()))
		}
	}
	if err != nil {
		r.m.log.Warn("the records of servers are not forgotten", "servers", names, "error", err)
	}
}

// brief returns the first error of a servers file with its line and column, and how many more
// errors there are.
func brief(err error) string {
	first, ok := errors.AsType[*serversfile.Error](err)
	if !ok {
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	text := fmt.Sprintf("%d:%d: %s", first.Line, first.Column, first.Reason)
	if more := strings.Count(err.Error(), "\n"); more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// retire tells all runners to connect again. The relay then tells the runners of a changed server to
// end. retire tells them several times in half a minute, because some may only be starting.
func (r *reloader) retire() {
	for _, wait := range []time.Duration{0, 2 * time.Second, 8 * time.Second, 20 * time.Second} {
		if storage.Rest(r.ctx, wait) != nil || !r.m.boxesRun(r.ctx) {
			return
		}
		r.m.inside.Retire()
		r.m.relay.Broadcast(frame.Encode(frame.Drain{}))
	}
}

// current replaces the server's definition in a task by the one in servers. The task may come from
// a function that has read an older file. The argument idle is the idle time of servers that set
// none.
func current(servers *serversfile.File, idle time.Duration, t fleet.Task) fleet.Task {
	s, ok := servers.Server(t.Server)
	if !ok || s.Disabled || t.Env[serverEnv] == "" {
		return t
	}
	s.Idle = cmp.Or(s.Idle, idle)
	t.Env = maps.Clone(t.Env)
	t.Env[serverEnv] = s.Marshal()
	return t
}

// serverEnv is the environment variable with the definition of the server that a runner runs.
const serverEnv = "DORMOUSE_SERVER"
