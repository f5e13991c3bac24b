package front

import (
	"context"
	"errors"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// listening is one listen stream: it hears what the process says outside of requests,
// and what becomes of tasks. Each is a stream in the log, waited for beside the others.
type listening struct {
	x     *exchange
	out   *reply
	l     *bridge.Listener
	tasks []*watched
}

// watched is a task that a client listens to.
type watched struct {
	task *bridge.Task
	call *host.Recalled
	next *host.Call // what comes behind what was recalled
	sign string     // of what the client knows
}

// heard is what came on one of the streams.
type heard struct {
	of     *watched // nil: not of a task
	events []session.Event
	err    error
}

// errTold: there is nothing to listen to any more.
var errTold = errors.New("all tasks have ended")

// watchTasks finds the tasks a client wants to hear of, and leaves in the filter those
// that there are.
func (x *exchange) watchTasks(req bridge.Request, l *bridge.Listener) ([]*watched, error) {
	var tasks []*watched
	var names []string
	for _, name := range l.Tasks() {
		ref, ok := x.taskRef(name)
		if !ok {
			continue
		}
		task, call, answered, err := x.recall(req, name, ref)
		if err != nil && session.CodeOf(err) == session.Unavailable {
			return nil, err
		}
		if err != nil {
			continue
		}
		w := &watched{task: task, call: call}
		if task.Waits(answered) {
			w.sign = task.Sign(answered) // its client knows that much
		}
		if w.next, _, err = x.opts.Host.Reattach(x.ctx(), x.caller, ref.Stream, call.Last()); err != nil {
			return nil, err
		}
		names, tasks = append(names, name), append(tasks, w)
	}
	l.HonourTasks(names)
	return tasks, nil
}

// to listens until the response has to end, the client has gone, or there is nothing
// to come. common is not listened to for a client that wants to hear of tasks only.
func (h listening) to(common *host.Call) error {
	ctx, cancel := context.WithCancel(h.x.ctx())
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
		got, err := h.out.wait(hear)
		if err == nil {
			err = got.err
		}
		switch {
		case err != nil:
		case got.of == nil:
			err = h.common(got.events)
		default:
			if err = h.progress(got.of, got.events); got.of.task.Ended() {
				open--
			}
		}
		if err != nil {
			return err
		}
	}
	return errTold
}

// follow passes on what comes on a stream, until its end.
func (h listening) follow(ctx context.Context, call *host.Call, of *watched, hear chan<- heard) {
	for !call.Done() {
		events, err := call.Next(ctx, h.out.end)
		if err == nil && len(events) == 0 {
			return // the response is at its end, or the stream
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

// common takes what the process says outside of requests.
func (h listening) common(events []session.Event) error {
	for _, e := range events {
		var err error
		if a, ok := bridge.Unasked(e.Raw); ok {
			err = h.x.opts.Host.Reply(h.x.ctx(), h.x.caller, a.Raw)
		} else if raw := h.l.Notification(e.Raw); raw != nil {
			err = h.out.notify(raw)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// progress takes what comes of a task.
func (h listening) progress(w *watched, events []session.Event) error {
	for _, e := range events {
		w.task.Take(e)
	}
	return h.tell(w)
}

// tell tells the client of a task, if it does not know what there is to tell.
func (h listening) tell(w *watched) error {
	answered, err := h.x.settleTask(w.task, w.call)
	if err != nil {
		return err
	}
	sign := w.task.Sign(answered)
	if sign == w.sign {
		return nil
	}
	w.sign = sign
	now, poll := h.x.taskClock(w.task)
	return h.out.notify(h.l.Task(w.task, answered, now, poll))
}
