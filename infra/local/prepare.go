package local

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// To prepare a server means to install it and to start it once, so that the store keeps its answer
// to initialize and its lists. The first time, clients do not wait for that: they get provisional
// answers; see [sessions.Server].Preparing.

// preparing has the servers that are being prepared now.
type preparing struct {
	mu sync.Mutex
	of map[string]*preparation
}

type preparation struct {
	begun time.Time
	first bool          // the server has never started before
	over  chan struct{} // closed at the end, after said and err were set
	said  api.Prepared
	err   error
}

// has reports whether a server is being prepared for the first time.
func (p *preparing) has(server string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.of[server]
	return one != nil && one.first
}

// begin returns the preparation of a server. The result mine is true if nobody has begun the
// preparation yet; the caller must then do it.
func (p *preparing) begin(server string, first bool) (one *preparation, mine bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.of[server]; one != nil {
		return one, false
	}
	if p.of == nil {
		p.of = map[string]*preparation{}
	}
	one = &preparation{begun: time.Now(), first: first, over: make(chan struct{})}
	p.of[server] = one
	return one, true
}

func (p *preparing) end(server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, server)
}

// mostPrepared limits how many servers prepareTaken prepares at the same time.
const mostPrepared = 16

// prepareTaken marks those servers as being prepared that have something to install and have never
// started. The caller must call start, which begins the work. Without Config.Prepare, prepareTaken
// does nothing.
func (m *machine) prepareTaken(servers []string) (start func()) {
	in, ok := m.functions.(*inprocess)
	if !m.cfg.Prepare || !ok {
		return func() {}
	}
	begun := map[string]*preparation{}
	for _, name := range servers {
		s, ok := m.servers.Load().Server(name)
		if !ok || s.Disabled || s.InPlace() || !s.Record || !installs(s) || in.known(s) {
			continue
		}
		if one, mine := in.preparing.begin(name, true); mine {
			begun[name] = one
		}
	}
	return func() {
		room := make(chan struct{}, mostPrepared)
		for name, one := range begun {
			in.work.Go(func() {
				room <- struct{}{}
				defer func() { <-room }()
				in.prepare(in.ctx, name, one)
			})
		}
	}
}

// installs reports whether a server may have to be installed before it can start.
func installs(s serversfile.Server) bool {
	return s.Box.HostPath != "" || slices.Contains([]string{"npx", "uvx", "uv", "pipx"}, filepath.Base(s.Command))
}

// known reports whether the store has the server's answer to initialize, for the tenant of the
// machine's user.
func (in *inprocess) known(s serversfile.Server) bool {
	_, started := recordsOf(in.ctx, in.m, in.tenant()).tools(s)
	return started
}

// tenant is the tenant of the machine's user.
func (in *inprocess) tenant() string {
	if in.m.public.access() == AccessOpen {
		return apikey.LocalTenant
	}
	return "default"
}

// prepare prepares a server and waits for the result. If somebody else prepares the server already,
// it only waits.
func (m *machine) prepare(ctx context.Context, server string) (api.Prepared, error) {
	in, ok := m.functions.(*inprocess)
	if !ok {
		return api.Prepared{}, storage.Errorf(storage.Invalid, "functions that are programs of their own do not prepare servers")
	}
	s, ok := m.servers.Load().Server(server)
	if !ok || s.Disabled {
		return api.Prepared{}, storage.Errorf(storage.NotFound, "server %q is not served", server)
	}
	one, mine := in.preparing.begin(server, !in.known(s))
	if mine {
		in.work.Go(func() { in.prepare(in.ctx, server, one) })
	}
	select {
	case <-one.over:
		return one.said, one.err
	case <-ctx.Done():
		return api.Prepared{}, ctx.Err()
	}
}

// prepare starts a server once, stores the result in the preparation, and tells the server's clients
// that their lists are ready.
func (in *inprocess) prepare(ctx context.Context, server string, one *preparation) {
	h := in.use().http.Host
	s, ok := in.made.Load().of[0].Server(server)
	if ok {
		c := sessions.Caller{Identity: storage.Identity{Tenant: in.tenant(), Principal: in.tenant()}, Server: s, Transport: storage.HTTP}
		p := &preparer{h: h, c: c}
		one.said, one.err = p.run(ctx)
		if !s.InPlace {
			in.sleep(ctx, storage.BoxFor(c.Tenant, server), p.id)
		}
	} else {
		one.err = storage.Errorf(storage.NotFound, "server %q is not served any more", server)
	}
	in.preparing.end(server)
	close(one.over)
	if err := h.Prepared(ctx, server, one.begun); err != nil && ctx.Err() == nil {
		in.m.log.Warn("not every client hears that its server is ready", "server", server, "error", err)
	}
}

// sleep ends the processes of a box, once their calls have ended, and waits until the box is asleep,
// for sleepWithin at most. If a server does not announce changes of its lists, clients get stored
// lists only while its box is asleep. sleep does nothing if a process serves another session than own.
func (in *inprocess) sleep(ctx context.Context, box storage.BoxID, own storage.ID) {
	status, err := statusOf(ctx, in.m)
	if err == nil && slices.ContainsFunc(status.Processes, func(p api.Process) bool {
		return p.Box == string(box) && (runs(p) || p.State == "staging") && slices.ContainsFunc(p.Sessions, func(id string) bool { return id != string(own) })
	}) {
		return
	}
	if _, err := in.m.functions.Operators().Halt(ctx, box, frame.Halt{By: "the end of its preparation", In: drainWithin.Milliseconds()}); err != nil && ctx.Err() == nil {
		in.m.log.Warn("the process of a preparation is not told to end", "box", string(box), "error", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sleepWithin)
	defer cancel()
	for storage.Rest(ctx, sleepWithin/60) == nil {
		if b, err := in.store.Box(ctx, box); err != nil || b.State == storage.Asleep {
			return
		}
	}
}

const sleepWithin = 3 * time.Second

// preparer is an MCP client in this program.
type preparer struct {
	h   *sessions.Manager
	c   sessions.Caller
	id  storage.ID
	ids int
}

// prepareWithin is the longest time for a preparation, including everything that must be
// installed.
const prepareWithin = 15 * time.Minute

// run opens a session, asks for all lists of the server, and closes the session.
func (p *preparer) run(ctx context.Context) (said api.Prepared, err error) {
	ctx, cancel := context.WithTimeout(ctx, prepareWithin)
	defer cancel()
	init, err := p.initialize(ctx)
	if p.id != "" {
		defer func() { _ = p.h.Terminate(context.WithoutCancel(ctx), p.id) }()
	}
	if err != nil {
		return said, err
	}
	said.Version, _ = wire.String(wire.Lookup(init, "serverInfo", "version"))
	for _, l := range wire.Lists() {
		if wire.Lookup(init, "capabilities", l.Capability) == nil {
			continue
		}
		n, err := p.list(ctx, l.Method, l.Entries)
		if l.Method != wire.MethodToolsList {
			continue // the server is usable without this list
		}
		if endless, ok := errors.AsType[*wire.EndlessList](err); ok {
			said.Warning, err = endless.Error(), nil
		}
		if said.Tools = n; err != nil {
			return said, err
		}
	}
	return said, nil
}

func (p *preparer) initialize(ctx context.Context) (json.RawMessage, error) {
	params := json.RawMessage(`{"protocolVersion":"` + wire.V20251125 + `","capabilities":{},"clientInfo":{"name":"dormouse","version":"` + api.Version() + `"}}`)
	m, err := wire.Parse(wire.NewRequest(json.RawMessage("0"), wire.MethodInitialize, params))
	if err != nil {
		return nil, err
	}
	s, call, err := p.h.Initialize(ctx, p.c, "", m)
	if err != nil {
		return nil, err
	}
	p.id = s.ID
	result, err := p.answer(ctx, call)
	if err != nil {
		return nil, err
	}
	m, err = wire.Parse(wire.NewNotification(wire.NotifyInitialized, nil))
	if err == nil {
		_, err = p.h.Accept(ctx, p.c, p.id, []wire.Message{m}, false)
	}
	return result, err
}

// list requests all pages of a list, and returns how many entries they have.
func (p *preparer) list(ctx context.Context, method, key string) (n int, err error) {
	var pages wire.Pages
	for params := json.RawMessage(nil); ; {
		p.ids++
		m, err := wire.Parse(wire.NewRequest(json.RawMessage(strconv.Itoa(p.ids)), method, params))
		if err != nil {
			return n, err
		}
		call, err := p.h.Accept(ctx, p.c, p.id, []wire.Message{m}, false)
		if err != nil {
			return n, err
		}
		result, err := p.answer(ctx, call)
		if err != nil {
			return n, err
		}
		var items []json.RawMessage
		if err := json.Unmarshal(wire.Lookup(result, key), &items); err != nil {
			return n, storage.Errorf(storage.Unavailable, "the answer to %s has no list of %s", method, key)
		}
		n += len(items)
		cursor, err := pages.Next(result)
		if err != nil || cursor == nil {
			return n, err
		}
		params = json.RawMessage(`{"cursor":` + string(cursor) + `}`)
	}
}

// answer returns the result of a request, once the server has answered.
func (p *preparer) answer(ctx context.Context, call *sessions.Call) (json.RawMessage, error) {
	for !call.Done() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		events, err := call.Next(ctx, time.Now().Add(time.Minute))
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			if said := wire.Lookup(e.Raw, "error"); said != nil {
				text, _ := wire.String(wire.Lookup(said, "message"))
				return nil, storage.Errorf(storage.Unavailable, "%s", strings.TrimPrefix(text, `server "`+p.c.Server.Name+`": `))
			}
			if result := wire.Lookup(e.Raw, "result"); result != nil {
				return result, nil
			}
		}
	}
	return nil, storage.Errorf(storage.Unavailable, "it ended without an answer")
}
