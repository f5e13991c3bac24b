package sessions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A task (extension io.modelcontextprotocol/tasks of 2026-07-28) is a call of [Manager.Send] for which
// the client no longer waits; it has a taskId instead. A task has no record of its own: it is made of the
// call's stream in the log, and of the call's [storage.Item] until the call ends.

// Recalled is a call of [Manager.Send] whose client asks for it by its taskId.
type Recalled struct {
	// Events are the call's events that the log still has, in order, without log messages and
	// with only the newest progress.
	Events []storage.Event
	Gap    bool            // events before Events were lost
	Server json.RawMessage // the server's serverInfo, nil if unknown
	// Lost means that the log has no end of the call, and the store has no [storage.Item] of it. The
	// result is not kept any more, or there never was such a call.
	Lost bool

	of     *use
	stream storage.StreamID
	last   storage.Index

	progress storage.Index // index of the last progress event
}

// Ended reports whether the end of the call is among its events.
func (r *Recalled) Ended() bool { return len(r.Events) > 0 && r.Events[len(r.Events)-1].Final }

// Last returns the index of the last event in the log, 0 if there is none.
func (r *Recalled) Last() storage.Index { return r.last }

// Recall reads the call with this stream in the caller's inner session ([PinnedID]). Cost: two reads,
// and one more for each 1,000 events.
//
// Errors: NotFound (the caller has no inner session), Unavailable.
func (h *Manager) Recall(ctx context.Context, c Caller, stream storage.StreamID) (*Recalled, error) {
	u, err := h.use(ctx, c, PinnedID(c))
	if err != nil {
		return nil, err
	}
	r := &Recalled{Server: u.session.ServerInfo, of: u, stream: stream}
	return r, r.reread(ctx)
}

func (r *Recalled) reread(ctx context.Context) error {
	r.Events, r.Gap, r.last, r.progress = nil, false, 0, 0
	for {
		page, err := r.of.manager.store.Read(ctx, r.of.session.ID, r.stream, r.last, storage.MaxRead)
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

// take adds an event. Of the notifications it keeps only the newest progress and notifications/cancelled,
// because a call may have sent more than fit into memory.
func (r *Recalled) take(e storage.Event) {
	r.last = e.Index
	m, err := wire.Parse(e.Raw)
	if err == nil && m.Kind == wire.Notification && m.Method != wire.NotifyCancelled {
		if m.Method != wire.NotifyProgress {
			return
		}
		r.Events = slices.DeleteFunc(r.Events, func(old storage.Event) bool { return old.Index == r.progress })
		r.progress = e.Index
	}
	e.Raw = bytes.Clone(e.Raw) // a copy, so that the page can be freed
	r.Events = append(r.Events, e)
}

// LookAfter checks whether a call that has not ended can still end, and sets Lost if it cannot. If the
// box is not awake, LookAfter calls [Tracker.Check], which may wake it. Cost: one read, three if the
// call has no [storage.Item], and the cost of Check.
//
// Errors: Unavailable.
func (r *Recalled) LookAfter(ctx context.Context) error {
	tracker, err := r.of.manager.backend.Track(ctx, r.of.session, r.stream)
	switch {
	case errors.Is(err, storage.NotFound):
		// The end may have been written after the read of the log.
		err = r.reread(ctx)
		r.Lost = err == nil && !r.Ended()
		return err
	case err != nil || r.of.box.State == storage.Awake:
		return err
	}
	_, err = tracker.Check(ctx)
	return err
}

// Answered returns the questions that the client has answered. Cost: one read, or none without
// questions.
//
// Errors: Unavailable.
func (r *Recalled) Answered(ctx context.Context, questions []string) (map[string]bool, error) {
	if len(questions) == 0 {
		return nil, nil
	}
	answers, err := r.of.manager.store.Answers(ctx, r.of.session.ID, questions)
	if err != nil {
		return nil, err
	}
	answered := make(map[string]bool, len(answers))
	for _, a := range answers {
		answered[a.Question] = true
	}
	return answered, nil
}

// Answer stores responses to questions of a call and passes them on, as [Manager.Reply]
// does. Cost: one write for each.
//
// Errors: Unavailable.
func (r *Recalled) Answer(ctx context.Context, responses ...[]byte) error {
	return r.of.replies(ctx, responses)
}

// PaceAt returns how long a client should wait before it asks again for a task of this age: a tenth of
// the age, but at least Pace and at most 60 times Pace.
func PaceAt(age time.Duration) time.Duration {
	return min(max(age/10, Pace), 60*Pace).Round(time.Millisecond)
}
