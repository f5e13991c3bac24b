package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// A task (extension io.modelcontextprotocol/tasks of 2026-07-28) is a call of
// [Stateless.Send] whose client has gone away with a name for it. Nothing is added to
// what such a call leaves behind anyway: its stream in the log of the pinned session,
// and the item that says who owes the end. To ask for a task is to read the two.

// TaskMode says which calls of a server become tasks, for clients that know them.
type TaskMode string

// Which calls become tasks.
const (
	TasksAuto   TaskMode = ""       // those that take longer than a response is held for
	TasksAlways TaskMode = "always" // all that do not end at once
	TasksOff    TaskMode = "off"    // none, and clients are not told of tasks
)

// Recalled is a call of [Stateless.Send], as it is found by somebody who comes for it
// later.
type Recalled struct {
	// Events are what is kept of it, in order, as far as it says what has become of the
	// call: without log lines, and of progress the last only.
	Events []session.Event
	Gap    bool            // there were more in front of those that are kept
	Server json.RawMessage // what the server calls itself, nil if that is not known
	// Lost says that the call has not ended and nobody owes it an end: what it came
	// to is not kept, or it never was.
	Lost bool

	session session.Session
	box     session.Box
	stream  session.StreamID
	last    session.Index

	progress session.Index // the last of those
}

// Ended says that the end of the call is among its events.
func (r *Recalled) Ended() bool { return len(r.Events) > 0 && r.Events[len(r.Events)-1].Final }

// Last is the index of the last event that is there, 0 if there is none.
func (r *Recalled) Last() session.Index { return r.last }

// Recall reads a call of the caller. Cost: two reads, and one more for each 1,000
// events.
//
// Errors: NotFound (the caller has no calls), Unavailable.
func (h Tasks) Recall(ctx context.Context, c Caller, stream session.StreamID) (*Recalled, error) {
	s, box, err := h.Load(ctx, c, PinnedID(c))
	if err != nil {
		return nil, err
	}
	r := &Recalled{Server: s.ServerInfo, session: s, box: box, stream: stream}
	return r, h.reread(ctx, r)
}

// reread reads all events of a call.
func (h Tasks) reread(ctx context.Context, r *Recalled) error {
	r.Events, r.Gap, r.last, r.progress = nil, false, 0, 0
	for {
		page, err := h.store.Read(ctx, r.session.ID, r.stream, r.last, session.MaxRead)
		if err != nil {
			return err
		}
		for _, e := range page.Events {
			r.take(e)
		}
		r.Gap = r.Gap || page.Gap
		if !page.More || len(page.Events) == 0 {
			return nil
		}
	}
}

// take keeps an event that says what has become of the call: a call may have said
// more along the way than a function has room for.
func (r *Recalled) take(e session.Event) {
	r.last = e.Index
	m, err := wire.Parse(e.Raw)
	if err == nil && m.Kind == wire.Notification && m.Method != wire.NotifyCancelled {
		if m.Method != wire.NotifyProgress {
			return
		}
		r.Events = slices.DeleteFunc(r.Events, func(old session.Event) bool { return old.Index == r.progress })
		r.progress = e.Index
	}
	e.Raw = bytes.Clone(e.Raw) // not the page that it is a part of
	r.Events = append(r.Events, e)
}

// LookAfter is for a call that has not ended: it finds out whether it still can. It
// sees to a box that does not live any more, as everybody who waits for a call does.
// It costs a read, three if nobody owes the call an end, and what [Tracker.Check] costs
// if the box is not awake.
//
// Errors: Unavailable.
func (h Tasks) LookAfter(ctx context.Context, r *Recalled) error {
	tracker, err := h.backend.Track(ctx, r.session, r.stream)
	switch {
	case errors.Is(err, session.NotFound):
		// The end is written before the item goes: it may have come in between.
		err = h.reread(ctx, r)
		r.Lost = err == nil && !r.Ended()
		return err
	case err != nil || r.box.State == session.Awake:
		return err
	}
	_, err = tracker.Check(ctx)
	return err
}

// Answered says which questions of a call have been answered. It costs a read if
// there are any questions.
//
// Errors: Unavailable.
func (h Tasks) Answered(ctx context.Context, r *Recalled, questions []string) (map[string]bool, error) {
	if len(questions) == 0 {
		return nil, nil
	}
	answers, err := h.store.Answers(ctx, r.session.ID, questions)
	if err != nil {
		return nil, err
	}
	answered := make(map[string]bool, len(answers))
	for _, a := range answers {
		answered[a.Question] = true
	}
	return answered, nil
}

// Answer stores responses to questions of a call and hands them over, as
// [Stateless.Reply] does. It costs a write for each.
//
// Errors: Unavailable.
func (h Tasks) Answer(ctx context.Context, r *Recalled, responses ...[]byte) error {
	return h.replies(ctx, r.session, r.box, responses)
}

// Pace is how long a client is told to wait before it asks again for a call that was
// begun so long ago: a tenth of that, so that a call of an hour is asked for about a
// hundred times.
func (h *core) Pace(age time.Duration) time.Duration {
	pace := h.limits.Pace
	return min(max(age/10, pace), 60*pace).Round(time.Millisecond)
}
