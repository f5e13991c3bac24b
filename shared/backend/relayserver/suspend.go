package relayserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Suspended calls wait for their client (see storage.Item). The host writes the item before the
// events. When the last question is answered, the instance that has the answer, or the sweep, makes
// the item wait for a box, with one conditional write.
//
// Each suspension begins another round. A batch that would begin a round again changes nothing. A
// round is executed once, because its item is claimed once.

// suspension returns the item in state Suspended that an events frame asks for. raw is the
// request that the server will get again; suspension copies it. It returns Invalid if the frame
// cannot suspend the delivery.
func suspension(t Ticket, it frame.EventItem, raw []byte) (storage.Item, error) {
	bad := func(what string) (storage.Item, error) {
		return storage.Item{}, storage.Errorf(storage.Invalid, "a delivery of session %s is suspended with %s", t.Session, what)
	}
	a := it.Asks
	switch {
	case it.Stream == storage.Standalone || it.Final || len(t.Requests) == 0 || it.First < 1:
		return bad("an end, or for no request")
	case a.Round < 1 || a.Round > storage.MaxRounds || a.Within <= 0 || len(a.Questions) == 0 || len(a.Questions) > frame.MaxQuestions:
		return bad("no questions, or too many")
	case len(frame.RequestIDs(raw)) == 0:
		return bad("no request to send again")
	}
	for _, q := range a.Questions {
		if stream, round, ok := storage.Suspends(q.ID); !ok || stream != t.Stream || round != a.Round {
			return bad("a question that is not its own")
		}
	}
	before := storage.Item{Box: t.Box, ID: t.Stream, Gen: t.Gen, Round: a.Round - 1, Address: t.Address}
	base := it.First + storage.Index(len(it.Lens)) - 1
	within := min(time.Duration(a.Within), storage.MaxAsk/time.Millisecond) * time.Millisecond
	return before.Suspend(a.Questions, bytes.Clone(raw), base, time.Now(), within), nil
}

// suspend writes the item of a suspended delivery, in place of the item in state Taken if the
// delivery has one. If the store has this suspension or a later one already, suspend writes nothing.
// ok is false if the delivery has ended, or belongs to another generation by now.
func (x *boxes) suspend(ctx context.Context, it storage.Item, marked bool) (ok bool, err error) {
	was := storage.Item{State: storage.Taken, Gen: it.Gen, Round: it.Round - 1}
	for {
		if marked || it.Round > 1 {
			if swapped, err := x.Store.SwapItem(ctx, was, it); err != nil || swapped {
				return swapped, err
			}
		}
		if it.Round == 1 {
			if put, err := x.Store.PutItem(ctx, it); err != nil || put {
				return put, err
			}
		}
		old, err := x.Store.Item(ctx, it.Box, it.ID)
		switch {
		case errors.Is(err, storage.NotFound) && it.Round > 1:
			return false, nil
		case errors.Is(err, storage.NotFound): // the item was removed meanwhile; try again
		case err != nil:
			return false, err
		case old.Round >= it.Round:
			return true, nil
		case old.State != was.State || old.Gen != was.Gen || old.Round != was.Round:
			return false, nil
		}
		marked = true
	}
}

// answered resumes a suspended call if question was its last open one. It does nothing
// if the call has ended or the question is not one of session s.
func (x *boxes) answered(ctx context.Context, s storage.ID, box storage.BoxID, question string) error {
	stream, _, _ := storage.Suspends(question)
	it, err := x.Store.Item(ctx, box, stream)
	switch {
	case errors.Is(err, storage.NotFound):
		return nil // the call has ended
	case err != nil:
		return err
	case it.Address.Session != s || !it.Asks(question):
		return nil
	}
	resumed, err := x.resume(ctx, it)
	if err != nil || !resumed {
		return err
	}
	return x.wakeOrNudge(ctx, box)
}

// resume makes a suspended call wait for a box if all its questions are answered. It ends a call
// whose client cannot do what the server asked. it.Raw may be nil, as in a list of items.
func (x *boxes) resume(ctx context.Context, it storage.Item) (resumed bool, err error) {
	ids := make([]string, len(it.Questions))
	for i, q := range it.Questions {
		ids[i] = q.ID
	}
	answers, err := x.Store.Answers(ctx, it.Address.Session, ids)
	if err != nil || len(answers) < len(ids) {
		return false, err
	}
	if it.Raw == nil {
		round := it.Round
		if it, err = x.Store.Item(ctx, it.Box, it.ID); errors.Is(err, storage.NotFound) {
			return false, nil
		}
		if err != nil || it.State != storage.Suspended || it.Round != round {
			return false, err
		}
	}
	raw, fault := bridge.Again(it.Raw, it.Questions, answers)
	if fault != nil {
		return false, x.endItemWith(ctx, it, fault)
	}
	now := time.Now()
	return x.Store.SwapItem(ctx, it, it.Resume(raw, now, now.Add(validity)))
}

// wakeOrNudge makes a box read its inbox: it wakes a box that sleeps, and posts a nudge frame
// to a box that is awake.
func (x *boxes) wakeOrNudge(ctx context.Context, id storage.BoxID) error {
	b, err := x.rouse(ctx, id)
	if err == nil && b.State == storage.Awake {
		// If the nudge is lost, the sweep or an instance that waits for the call sends
		// another.
		if err := x.post(ctx, b.Conn, frame.Nudge{}); err != nil && !errors.Is(err, storage.Closed) {
			x.Log.WarnContext(ctx, "post to a box failed", "type", frame.TypeNudge, "box", id, "error", err)
		}
	}
	return err
}

// settleSuspended is what the sweep does for a suspended call. It ends the call if its stream
// has an end, its time is over, its session has ended, or the box was lost before the
// questions were stored. It resumes the call if all questions are answered.
func (x *boxes) settleSuspended(ctx context.Context, b storage.Box, it storage.Item) (resumed bool, err error) {
	tail, err := x.Store.Tail(ctx, it.Address.Session, it.ID)
	if err != nil {
		return false, err
	}
	if tail.Final || time.Now().After(it.NotAfter) {
		return false, x.endItem(ctx, it, unanswered(it))
	}
	if tail.Last < it.Base && b.Over(it.Gen) {
		return false, x.endItem(ctx, it, failureOf(b, it.Gen))
	}
	if now := time.Now(); it.Created.After(now.Add(maxSkew)) {
		// An instance with a wrong clock wrote the item.
		return false, x.anew(ctx, it, now)
	}
	s, _, err := x.Store.Load(ctx, it.Address.Session, "")
	if errors.Is(err, storage.NotFound) || err == nil && s.State == storage.Ended {
		return false, x.endItem(ctx, it, sessionEnded())
	}
	if err != nil {
		return false, err
	}
	return x.resume(ctx, it)
}

// anew restarts the time limit of a suspended call at now. it.Raw may be nil.
func (x *boxes) anew(ctx context.Context, it storage.Item, now time.Time) error {
	whole, err := x.Store.Item(ctx, it.Box, it.ID)
	if errors.Is(err, storage.NotFound) {
		return nil
	}
	if err != nil || whole.State != it.State || whole.Round != it.Round {
		return err
	}
	whole.NotAfter, whole.Created = now.Add(whole.NotAfter.Sub(whole.Created)), now
	_, err = x.Store.SwapItem(ctx, it, whole)
	return err
}

// cancelled ends the suspended calls that the client's message d cancels: no process has them,
// so none can end them. It also ends a call that was suspended before and now waits for a box.
// A call that shares a batch with other requests goes on.
func (x *boxes) cancelled(ctx context.Context, d sessions.Delivery) error {
	msgs, _, err := wire.ParseBody(d.Raw)
	if err != nil || !mayBeAsked(d.Client) {
		return nil
	}
	var ids []json.RawMessage
	for _, m := range msgs {
		if id := wire.Lookup(m.Params, "requestId"); m.Method == wire.NotifyCancelled && id != nil {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	why := &wire.Error{Code: wire.CodeCancelled, Message: "request cancelled by the client"}
	return x.eachAsking(ctx, d.Address, func(it storage.Item) error {
		if len(it.Address.Requests) != 1 || !slices.ContainsFunc(ids, func(id json.RawMessage) bool {
			return wire.SameID(id, it.Address.Requests[0])
		}) {
			return nil
		}
		return x.endItemWith(ctx, it, why)
	})
}

// eachAsking calls the function do for the items of a session's calls that wait for the client, or
// for a box after the client has answered.
func (x *boxes) eachAsking(ctx context.Context, of storage.Address, do func(storage.Item) error) error {
	return x.each(ctx, of.Box, func(it storage.Item) error {
		if !begun(it) || it.State == storage.Taken || it.Address.Session != of.Session {
			return nil
		}
		return do(it)
	})
}
