package relayhost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Calls that wait for their client (see session.Item). The runner's batch with the
// questions says that its delivery is suspended; the item is put first, then the
// events. Whoever sees that the last question is answered, a function with an answer
// or the sweep, makes the item wait for a box again, with one conditional write.
//
// What may be repeated, or come late, is told apart by the round: a batch of a round
// that has begun already changes nothing, and a delivery of a round is executed once
// because its item is claimed once.

// suspension is the item that an item of an events frame asks for, without what is
// kept of the one it is put over. raw is copied.
func suspension(t Ticket, it frame.EventItem, raw []byte) (session.Item, error) {
	bad := func(what string) (session.Item, error) {
		return session.Item{}, session.Errorf(session.Invalid, "a delivery of session %s is suspended with %s", t.Session, what)
	}
	a := it.Asks
	switch {
	case it.Stream == session.Common || it.Final || len(t.Requests) == 0 || it.First < 1:
		return bad("an end, or for no request")
	case a.Round < 1 || a.Round > session.MaxRounds || a.Within <= 0 || len(a.Questions) == 0 || len(a.Questions) > frame.MaxQuestions:
		return bad("no questions, or too many")
	case len(frame.RequestIDs(raw)) == 0:
		return bad("no request to send again")
	}
	for _, q := range a.Questions {
		if stream, round, ok := session.Suspends(q.ID); !ok || stream != t.Stream || round != a.Round {
			return bad("a question that is not its own")
		}
	}
	before := session.Item{Box: t.Box, ID: t.Stream, Gen: t.Gen, Round: a.Round - 1, Address: t.Address}
	base := it.First + session.Index(len(it.Lens)) - 1
	within := min(time.Duration(a.Within), session.MaxAsk/time.Millisecond) * time.Millisecond
	return before.Suspend(a.Questions, bytes.Clone(raw), base, time.Now(), within), nil
}

// suspend puts the item of a suspended delivery: over its own taken mark, or where
// there is none yet. ok is false if the delivery is another's by now, or has ended;
// it is true without a write if this round has begun already.
func (h *Handler) suspend(ctx context.Context, it session.Item, marked bool) (ok bool, err error) {
	was := session.Item{State: session.Taken, Gen: it.Gen, Round: it.Round - 1}
	for {
		if marked || it.Round > 1 {
			if swapped, err := h.Store.SwapItem(ctx, was, it); err != nil || swapped {
				return swapped, err
			}
		}
		if it.Round == 1 {
			if put, err := h.Store.PutItem(ctx, it); err != nil || put {
				return put, err
			}
		}
		old, err := h.Store.Item(ctx, it.Box, it.ID)
		switch {
		case errors.Is(err, session.NotFound) && it.Round > 1:
			return false, nil
		case errors.Is(err, session.NotFound): // gone since: look again
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

// answered resumes a suspended call if the question was the last that was open.
func (x boxes) answered(ctx context.Context, s session.ID, box session.BoxID, question string) error {
	stream, _, _ := session.Suspends(question)
	it, err := x.Store.Item(ctx, box, stream)
	switch {
	case errors.Is(err, session.NotFound):
		return nil // it has ended
	case err != nil:
		return err
	case it.Address.Session != s || !it.Asks(question):
		return nil
	}
	resumed, err := x.resume(ctx, it)
	if err != nil || !resumed {
		return err
	}
	return x.summon(ctx, box)
}

// resume makes a suspended call wait for a box if all its questions are answered. A
// call whose client cannot do what it was asked ends. it may come without Raw.
func (x boxes) resume(ctx context.Context, it session.Item) (resumed bool, err error) {
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
		if it, err = x.Store.Item(ctx, it.Box, it.ID); errors.Is(err, session.NotFound) {
			return false, nil
		}
		if err != nil || it.State != session.Suspended || it.Round != round {
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

// summon sees to it that a box comes for what waits in its inbox.
func (x boxes) summon(ctx context.Context, id session.BoxID) error {
	b, err := x.Store.Box(ctx, id)
	if err != nil {
		return err
	}
	if b, err = x.rouse(ctx, id, b.Tenant, b.Server); err != nil {
		return err
	}
	if b.State == session.Awake {
		// One that is lost is made up for by the sweep, or by who waits for the call.
		if err := x.post(ctx, b.Conn, frame.Nudge{}); err != nil && !errors.Is(err, session.Closed) {
			x.Log.WarnContext(ctx, "post to a box failed", "type", frame.TypeNudge, "box", id, "error", err)
		}
	}
	return nil
}

// settleSuspended does what is due for a suspended call that nobody else may come
// for: it has ended, or its session has; its time is over; its questions were never
// stored by the box that asked them; or all are answered, and whoever saw it died.
func (x boxes) settleSuspended(ctx context.Context, b session.Box, it session.Item) (resumed bool, err error) {
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
		// It was put by a clock that was wrong: its time begins now.
		return false, x.anew(ctx, it, now)
	}
	s, _, err := x.Store.Load(ctx, it.Address.Session, "")
	if errors.Is(err, session.NotFound) || err == nil && s.State == session.Ended {
		return false, x.endItem(ctx, it, sessionEnded())
	}
	if err != nil {
		return false, err
	}
	return x.resume(ctx, it)
}

// anew has the time of a suspended call begin again. it may come without Raw.
func (x boxes) anew(ctx context.Context, it session.Item, now time.Time) error {
	whole, err := x.Store.Item(ctx, it.Box, it.ID)
	if errors.Is(err, session.NotFound) {
		return nil
	}
	if err != nil || whole.State != it.State || whole.Round != it.Round {
		return err
	}
	whole.NotAfter, whole.Created = now.Add(whole.NotAfter.Sub(whole.Created)), now
	_, err = x.Store.SwapItem(ctx, it, whole)
	return err
}

// unanswered is why a suspended call ends whose client did not answer.
func unanswered(it session.Item) session.Failure {
	within := it.NotAfter.Sub(it.Created).Round(time.Millisecond)
	return session.Failure{
		Phase: phaseToolCall, At: it.Created,
		Detail: "nobody answered within " + within.String() + " what the server asked (answer_timeout_sec); call it again",
	}
}

func sessionEnded() session.Failure {
	return session.Failure{Phase: phaseUnavailable, Detail: "the session has ended"}
}

// cancelled ends the suspended calls that a client's message cancels: there is no
// process that could. A call that has asked before and waits for a box counts too;
// one of a batch that has others beside it goes on.
func (x boxes) cancelled(ctx context.Context, d host.Delivery) error {
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
	return x.endAsking(ctx, d.Address, func(it session.Item) bool {
		return len(it.Address.Requests) == 1 && slices.ContainsFunc(ids, func(id json.RawMessage) bool {
			return wire.SameID(id, it.Address.Requests[0])
		})
	}, &wire.Error{Code: wire.CodeCancelled, Message: "request cancelled by the client"})
}

// endAsking ends the calls of a session that wait for its client, or for a box
// after they did, and match.
func (x boxes) endAsking(ctx context.Context, of session.Address, match func(session.Item) bool, why *wire.Error) error {
	items, err := x.Store.Items(ctx, of.Box)
	if err != nil {
		return err
	}
	for _, it := range items {
		asks := it.State == session.Suspended || it.State == session.Waiting && it.Round > 0
		if asks && it.Address.Session == of.Session && match(it) {
			if err := x.endItemWith(ctx, it, why); err != nil {
				return err
			}
		}
	}
	return nil
}

// mayBeAsked says that a client has declared anything a server could ask of it. It
// spares the others a look at the items.
func mayBeAsked(s session.Session) bool {
	return slices.ContainsFunc([]string{"elicitation", "sampling", "roots"}, func(what string) bool {
		return wire.Lookup(s.Init, "capabilities", what) != nil
	})
}
