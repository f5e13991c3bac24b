package transport

import (
	"context"
	"errors"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// listening is the response to one subscriptions/listen. It passes on the messages that the process
// sends outside of requests, and the progress of tasks. It reads several streams of the log
// concurrently: one with these messages, and one for each task.
type listening struct {
	m     modern
	out   *reply
	l     *bridge.Listener
	tasks []*watched
}

type watched struct {
	task *bridge.Task
	call *sessions.Recalled
	next *sessions.Call // reads the events that came too late for the field call
	sign string         // fingerprint of the state that the client knows
}

// heard has new events of one of the streams, or the error that ended it.
type heard struct {
	of     *watched // the task; nil for messages outside of requests
	events []storage.Event
	err    error
}

var errTold = errors.New("all tasks have ended")

// watch finds the tasks that the client wants to hear of. It removes from the listener's
// filter the tasks that do not exist.
func (m modern) watch(l *bridge.Listener) ([]*watched, error) {
	var all []*watched
	var names []string
	for _, name := range l.Tasks() {
		ref, ok := m.ref(name)
		if !ok {
			continue
		}
		task, call, answered, err := m.look(name, ref)
		if err != nil && storage.CodeOf(err) == storage.Unavailable {
			return nil, err
		}
		if err != nil {
			continue
		}
		w := &watched{task: task, call: call}
		if task.Waits(answered) {
			w.sign = task.Sign(answered) // the client knows already that the task is working
		}
		if w.next, _, err = m.x.opts.Host.Reattach(m.ctx, m.to.Caller, ref.Stream, call.Last()); err != nil {
			return nil, err
		}
		names, all = append(names, name), append(all, w)
	}
	l.HonourTasks(names)
	return all, nil
}

// to listens until the response must end, the client has gone, or nothing more can come. The argument
// common has the messages outside of requests; if the client wants only tasks, common is not read.
func (h listening) to(common *sessions.Call) error {
	ctx, cancel := context.WithCancel(h.m.ctx)
	hear := make(chan heard)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	if !h.l.OnlyTasks() {
		group.Go(func() { h.follow(ctx, common, nil, hear) })
	}
	open := 0
	for _, w := range h.tasks {
		if err := h.tell(w); err != nil {
			return err
		}
		if !w.task.Ended() && !w.next.Done() {
			open++
			group.Go(func() { h.follow(ctx, w.next, w, hear) })
		}
	}
	for open > 0 || !h.l.OnlyTasks() {
		got, err := waitFor(h.out, hear)
		if err == nil {
			err = got.err
		}
		switch {
		case err != nil:
		case got.of == nil:
			err = h.common(got.events)
		default:
			for _, e := range got.events {
				got.of.task.Take(e)
			}
			if err = h.tell(got.of); got.of.task.Ended() {
				open--
			}
		}
		if err != nil {
			return err
		}
	}
	return errTold
}

// follow passes on the events of a stream until the end of the stream.
func (h listening) follow(ctx context.Context, call *sessions.Call, of *watched, hear chan<- heard) {
	for !call.Done() {
		events, err := call.Next(ctx, h.out.end)
		if err == nil && len(events) == 0 {
			return // the time of the response is over, or the stream has ended
		}
		select {
		case hear <- heard{of, events, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// common handles the messages that the process sends outside of requests.
func (h listening) common(events []storage.Event) error {
	for _, e := range events {
		var err error
		if a, ok := bridge.Unasked(e.Raw); ok {
			err = h.m.x.opts.Host.Reply(h.m.ctx, h.m.to.Caller, a.Raw)
		} else if raw := h.l.Notification(e.Raw); raw != nil {
			err = h.out.notify(raw)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tell sends the client the state of a task, if the client does not know it yet.
func (h listening) tell(w *watched) error {
	answered, err := h.m.answered(w.task, w.call)
	if err != nil {
		return err
	}
	sign := w.task.Sign(answered)
	if sign == w.sign {
		return nil
	}
	w.sign = sign
	now, poll := h.m.clock(w.task)
	return h.out.notify(h.l.Task(w.task, answered, now, poll))
}
