package transport

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/group"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// listen serves subscriptions/listen at the servers that may have something to report. While
// the response is held, it passes on the changes that the caller's processes report. A
// listener does not keep a process awake, and a sleeping process reports nothing.
func (m modern) listen(endpoint sessions.Endpoint, kind string) error {
	out := newReply(m)
	to, err := endpoint.Dispatch(m.ctx, kind, m.req.Message)
	if err != nil {
		return out.fail(err)
	}
	var greeting []byte
	var refused *bridge.Response
	alone := len(to) == 1 && to[0].Greeting == nil // an endpoint of one server sets no Greeting, so look for the server's answer to initialize
	if alone {
		greeting, refused, err = m.greeting(endpoint, kind, out)
		to[0].Greeting = greeting
	} else {
		greeting, _, err = endpoint.Greeting(m.ctx, kind, m.client())
	}
	if err == nil && refused != nil {
		out.finish(refused.Raw, refused.Code)
		return nil
	}
	var l *bridge.Listener
	if err == nil {
		l, err = bridge.NewListener(m.req, greeting)
	}
	if err == nil {
		err = m.hear(out, to, alone)
	}
	switch {
	case errors.Is(err, errLate), errors.Is(err, errTold):
		out.finish(l.End(), 0)
		return nil
	case errors.Is(m.ctx.Err(), context.Canceled):
		err = errGone
	}
	return out.fail(err)
}

// errTold says that all tasks that the client listens to have ended.
var errTold = errors.New("all tasks have ended")

// hearing listens at one server: to the messages that its process sends outside of requests, and to
// the progress of tasks. Each is in a stream of the log that a goroutine reads.
type hearing struct {
	modern
	l          *bridge.Listener
	common     *sessions.Call // the messages outside of requests; not read if the client wants only tasks
	tasks      []*watched
	subscribed []string // the resources that were subscribed to
	failed     error    // why nothing is heard from the server
}

// over reports whether nothing more can come from the server.
func (p *hearing) over() bool {
	changes := func(w *watched) bool { return w.follows && !w.task.Ended() }
	return p.failed != nil || p.l.OnlyTasks() && !slices.ContainsFunc(p.tasks, changes)
}

// heard has new events of one of the streams, or the error that ended it.
type heard struct {
	from   *hearing
	of     *watched // the task; nil for messages outside of requests
	events []storage.Event
	err    error
}

// hear listens at the servers, until the response must end, the client has gone, or nothing more can
// come. If there are several servers (alone is false), the error of one does not end the others. The
// client gets no change before all servers have acknowledged the subscription or refused it.
func (m modern) hear(out *reply, to []sessions.Dispatched, alone bool) error {
	ctx, cancel := context.WithCancel(m.ctx)
	opened, said := make(chan *hearing), make(chan heard)
	var servers sync.WaitGroup
	all := make([]*hearing, len(to))
	defer func() {
		cancel()
		servers.Wait()
		for _, p := range all {
			if err := p.unsubscribe(); alone && m.x.err == nil {
				m.x.err = err
			}
		}
	}()
	for i, d := range to {
		p := &hearing{modern: newModern(m.x, ctx, m.req, d)}
		all[i] = p
		servers.Go(func() {
			p.failed = p.begin(out.end)
			select {
			case opened <- p:
				p.read(said, out.end)
			case <-ctx.Done():
			}
		})
	}
	acks := group.Acks{}
	for range to {
		p, err := waitFor(out, opened)
		switch {
		case err != nil:
			return err
		case p.failed == nil:
			acks.Add(p.seen(p.l.Acknowledged()))
		case alone:
			return p.failed
		}
	}
	ack := acks.Message(m.req.ID)
	if alone {
		ack = all[0].l.Acknowledged()
	}
	some := slices.ContainsFunc(all, func(p *hearing) bool { return p.failed == nil })
	err := out.notify(ack)
	for _, p := range all {
		for _, w := range p.tasks {
			if err == nil && p.failed == nil {
				err = p.tell(out, w)
			}
		}
	}
	for err == nil && (!some || slices.ContainsFunc(all, func(p *hearing) bool { return !p.over() })) {
		var h heard
		if h, err = waitFor(out, said); err != nil || h.from.failed != nil {
			continue
		}
		if h.err == nil {
			h.err = h.from.take(out, h)
		}
		if h.from.failed = h.err; alone || errors.Is(h.err, errGone) {
			err = h.err
		}
	}
	if err == nil {
		err = errTold
	}
	return err
}

// begin subscribes to the resources, and finds the tasks.
func (p *hearing) begin(end time.Time) (err error) {
	if p.l, err = bridge.NewListener(p.req, p.to.Greeting); err == nil && p.servesTasks() {
		err = p.l.ReadTasks(p.req)
	}
	if err == nil {
		// Watch comes before the subscription, because the process may answer a subscription
		// with a notification at once.
		p.common, err = p.x.opts.Host.Watch(p.ctx, p.to.Caller)
	}
	if err != nil {
		return err
	}
	if uris := p.l.Resources(); len(uris) > 0 {
		subscription, err := p.x.opts.Host.Subscribe(p.ctx, p.to.Caller, p.client(), uris)
		if err != nil {
			return err
		}
		p.subscribed = uris
		honoured, err := p.honoured(subscription, end)
		if err != nil {
			return err
		}
		p.l.Honour(honoured)
	}
	return p.watch()
}

// honoured waits for the answers to a subscription and returns the resources that the server
// agreed to watch.
func (p *hearing) honoured(subscription *sessions.Call, end time.Time) ([]string, error) {
	var agreed []string
	for open := len(p.subscribed); open > 0; {
		events, err := subscription.Next(p.ctx, end)
		switch {
		case err != nil:
			return nil, err
		case len(events) == 0 && subscription.Done():
			return nil, errOver
		case len(events) == 0 && !time.Now().Before(end):
			return nil, errLate
		}
		for _, e := range events {
			i, answered := numbered(e, subscription.Stream())
			if !answered {
				continue
			}
			open--
			if i < len(p.subscribed) && wire.Lookup(e.Raw, "result") != nil {
				agreed = append(agreed, p.subscribed[i])
			}
		}
	}
	return agreed, nil
}

// numbered reads which request of a subscription an event answers. The id of a request is the name
// of the subscription's stream, "-", and the index of the request.
func numbered(e storage.Event, stream storage.StreamID) (i int, ok bool) {
	id, _ := wire.String(wire.Lookup(e.Raw, "id"))
	index, ours := strings.CutPrefix(id, string(stream)+"-")
	i, err := strconv.Atoi(index)
	return i, ours && isResponse(e.Raw) && err == nil && i >= 0
}

// unsubscribe cancels the subscription, even if the client has gone.
func (p *hearing) unsubscribe() error {
	if len(p.subscribed) == 0 {
		return nil
	}
	ctx, cancel := p.x.detached()
	defer cancel()
	return p.x.opts.Host.Unsubscribe(ctx, p.to.Caller, p.subscribed)
}

// read sends what comes on the streams of the server to the channel said, until the streams end.
func (p *hearing) read(said chan<- heard, end time.Time) {
	if p.failed != nil {
		return
	}
	var streams sync.WaitGroup
	if !p.l.OnlyTasks() {
		streams.Go(func() { p.follow(p.common, nil, said, end) })
	}
	for _, w := range p.tasks {
		if w.follows {
			streams.Go(func() { p.follow(w.next, w, said, end) })
		}
	}
	streams.Wait()
}

func (p *hearing) follow(call *sessions.Call, of *watched, said chan<- heard, end time.Time) {
	for !call.Done() {
		events, err := call.Next(p.ctx, end)
		if err == nil && len(events) == 0 {
			return // the time of the response is over, or the stream has ended
		}
		select {
		case said <- heard{p, of, events, err}:
		case <-p.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// take handles new events of a stream.
func (p *hearing) take(out *reply, h heard) error {
	if w := h.of; w != nil {
		for _, e := range h.events {
			w.task.Take(e)
		}
		return p.tell(out, w)
	}
	for _, e := range h.events {
		var err error
		if a, ok := bridge.Unasked(e.Raw); ok {
			err = p.x.opts.Host.Reply(p.ctx, p.to.Caller, a.Raw)
		} else if raw := p.l.Notification(e.Raw); raw != nil {
			err = out.notify(p.seen(raw))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// watched is a task to which a client listens.
type watched struct {
	task    *bridge.Task
	call    *sessions.Recalled
	next    *sessions.Call // reads the events that came too late for the field call
	follows bool           // next has more events
	sign    string         // fingerprint of the state that the client knows
}

// watch finds the tasks that the client wants to hear of. It removes from the listener's
// filter the tasks that do not exist.
func (p *hearing) watch() error {
	var names []string
	for _, name := range p.l.Tasks() {
		ref, ok := p.ref(name)
		if !ok {
			continue
		}
		task, call, answered, err := p.look(name, ref)
		if err != nil && storage.CodeOf(err) == storage.Unavailable {
			return err
		}
		if err != nil {
			continue
		}
		w := &watched{task: task, call: call}
		if task.Waits(answered) {
			w.sign = task.Sign(answered) // the client knows already that the task is working
		}
		if w.next, _, err = p.x.opts.Host.Reattach(p.ctx, p.to.Caller, ref.Stream, call.Last()); err != nil {
			return err
		}
		w.follows = !task.Ended() && !w.next.Done()
		names, p.tasks = append(names, name), append(p.tasks, w)
	}
	p.l.HonourTasks(names)
	return nil
}

// tell sends the client the state of a task, if the client does not know it yet.
func (p *hearing) tell(out *reply, w *watched) error {
	answered, err := p.answered(w.task, w.call)
	if err != nil {
		return err
	}
	sign := w.task.Sign(answered)
	if sign == w.sign {
		return nil
	}
	w.sign = sign
	now, poll := p.clock(w.task)
	return out.notify(p.seen(p.l.Task(w.task, answered, now, poll)))
}
