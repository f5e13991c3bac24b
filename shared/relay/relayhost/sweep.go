package relayhost

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Sweeper finds boxes that were lost and requests that nobody ends, and puts
// both right. Every step is idempotent and may race with itself,
// with runners and with waiting functions.
type Sweeper struct{ boxes }

// NewSweeper makes a Sweeper.
func NewSweeper(c Config) *Sweeper { return &Sweeper{newBoxes(c)} }

// orphanAge is for how long a box's record must not have changed before a task is
// stopped that it does not know. A runner that said bye, was fenced or lost its host
// has ended by itself long before.
const orphanAge = 10 * time.Minute

// Sweep looks at every box that is not asleep or has items, and compares records and
// the fleet's list both ways: a box whose task has gone is lost, and a task that no
// record knows is stopped. It is what the schedule calls, and what starts with a new
// machine. It goes on after a box that fails, and without the list, and returns all
// errors.
func (w *Sweeper) Sweep(ctx context.Context) error {
	due, err := w.Store.Due(ctx)
	if err != nil {
		return err
	}
	// The list is read after the records: a task that is not on it can then not
	// have been started since.
	boxes := make(map[session.BoxID]session.Box, len(due))
	var errs []error
	for _, id := range due {
		if w.Elsewhere != nil && w.Elsewhere(id) {
			continue
		}
		b, err := w.Store.Box(ctx, id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		boxes[id] = b
	}
	tasks, err := w.Fleet.Tasks(ctx)
	listed := err == nil
	errs = append(errs, err)
	for _, id := range due {
		b, ok := boxes[id]
		if !ok {
			continue
		}
		if listed {
			errs = append(errs, w.compare(ctx, b, tasks))
		}
		errs = append(errs, w.settle(ctx, id))
	}
	if listed {
		errs = append(errs, w.stopOrphans(ctx, boxes, tasks))
	}
	return errors.Join(errs...)
}

// compare looks for the task of a box, which may have ended without a word.
func (w *Sweeper) compare(ctx context.Context, b session.Box, tasks []fleet.Status) error {
	at := slices.IndexFunc(tasks, func(t fleet.Status) bool { return runs(b, t) })
	var t fleet.Status
	if at >= 0 {
		t = tasks[at]
	}
	switch {
	case b.State == session.Awake && (t.State == fleet.Stopped || at < 0 && longAgo(b.Changed, w.ListLag)):
		return w.lost(ctx, b, stopFailure(t, false))
	case b.State == session.Starting && t.State == fleet.Stopped:
		b.Failure = stopFailure(t, true)
		return w.again(ctx, b)
	}
	return nil // one that never came up runs out of time
}

// runs says that a task is the one a box's record is about.
func runs(b session.Box, t fleet.Status) bool {
	return b.State == session.Awake && b.Task == t.ID ||
		b.State == session.Starting && t.ClientToken == ClientToken(b.ID, b.Gen)
}

// stopOrphans stops what runs for nobody: starts that were given up or taken over and
// came up after all, and runners that did not end. boxes are records from before the
// list was read.
func (w *Sweeper) stopOrphans(ctx context.Context, boxes map[session.BoxID]session.Box, tasks []fleet.Status) error {
	var errs []error
	for _, t := range tasks {
		if t.State == fleet.Stopped || runs(boxes[session.BoxID(t.Box)], t) {
			continue
		}
		b, err := w.Store.Box(ctx, session.BoxID(t.Box))
		if err == nil && !runs(b, t) && time.Since(b.Changed) > orphanAge {
			w.Log.WarnContext(ctx, "task stopped that no box knows", "task", t.ID, "box", t.Box, "server", t.Server)
			err = w.Fleet.Stop(ctx, t.ID, "no box knows it")
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Stopped is told by the fleet that a task has ended.
func (w *Sweeper) Stopped(ctx context.Context, t fleet.Status) error {
	b, err := w.Store.Box(ctx, session.BoxID(t.Box))
	if err != nil {
		return err
	}
	switch {
	case !runs(b, t):
	case b.State == session.Awake:
		err = w.lost(ctx, b, stopFailure(t, false))
	default:
		b.Failure = stopFailure(t, true)
		err = w.again(ctx, b)
	}
	return errors.Join(err, w.settle(ctx, b.ID))
}

// stopFailure is what clients are told of a task that ended under them, or, when it
// was starting, before it ever said hello. A task
// the fleet knows nothing of any more is a zero Status.
func stopFailure(t fleet.Status, starting bool) session.Failure {
	f := session.Failure{Phase: phaseRuntime, Exit: t.ExitCode, Signal: t.Signal, At: t.Stopped}
	switch {
	case t.ID != "" && t.ExitCode == frame.ExitUnreachable && starting:
		f.Phase, f.Detail = phaseConnect, "the box was started and could not reach the host; nothing was executed"
	case t.ID != "" && starting:
		f.Phase, f.Detail = phaseUnavailable, fmt.Sprintf("the box could not start (%s); nothing was executed", t.Reason)
	case t.ID == "":
		f.Detail, f.At = "the box is gone; whether the request was executed is not known", time.Now()
	case t.Signal != "":
		f.Detail = fmt.Sprintf("the box was killed by %s before the request was finished; whether it was executed is not known", t.Signal)
	default:
		f.Detail = fmt.Sprintf("the box exited with code %d before the request was finished; whether it was executed is not known", t.ExitCode)
	}
	return f
}

// lost records that the generation of b did not end by its own bye. Somebody who
// wrote in between knows better: then nothing is done, and the caller's settle
// looks again.
func (w *Sweeper) lost(ctx context.Context, b session.Box, why session.Failure) error {
	err := w.Store.SaveBox(ctx, lose(b, why, time.Now()))
	if errors.Is(err, session.Conflict) {
		return nil
	}
	if err == nil {
		w.Log.WarnContext(ctx, "box lost", "box", b.ID, "server", b.Server, "generation", b.Gen, "task", b.Task,
			"exit_code", why.Exit, "signal", why.Signal)
	}
	return err
}

// again starts a box once more whose start failed, or gives it up.
func (x boxes) again(ctx context.Context, b session.Box) error {
	if b.Attempt >= maxAttempts {
		return ignoreConflict(x.giveUp(ctx, b))
	}
	now, token := time.Now(), newToken()
	b = retry(b, session.NewNonce(), hashToken(token), now, now.Add(x.StartTimeout))
	if err := x.Store.SaveBox(ctx, b); err != nil {
		return ignoreConflict(err)
	}
	b.Rev++
	_, err := x.start(ctx, b, token)
	return ignoreConflict(err)
}

func ignoreConflict(err error) error {
	if errors.Is(err, session.Conflict) {
		return nil
	}
	return err
}

// settle does for one box what its record and its items say is due: a start that
// ran out of time, requests taken by a generation that is over, requests that
// wait for a box nobody wakes. One request that cannot be ended does not keep it
// from the others.
func (x boxes) settle(ctx context.Context, id session.BoxID) error {
	b, err := x.Store.Box(ctx, id)
	if err != nil {
		return err
	}
	if b.State == session.Starting && x.overdue(b) {
		b.Failure = session.Failure{
			Phase: phaseUnavailable, Detail: fmt.Sprintf("the box did not come up within %s", x.StartTimeout), At: time.Now(),
		}
		if err := x.again(ctx, b); err != nil {
			return err
		}
		if b, err = x.Store.Box(ctx, id); err != nil {
			return err
		}
	}
	items, err := x.Store.Items(ctx, id)
	if err != nil {
		return err
	}
	waiting := false
	var errs []error
	for _, it := range items {
		var err error
		switch {
		case it.State == session.Taken && b.Over(it.Gen):
			var released bool
			released, err = x.overItem(ctx, b, it)
			waiting = waiting || released
		case it.State == session.Taken:
			err = x.sweepEnded(ctx, it)
		case it.State == session.Leftover:
			err = x.settleLeftover(ctx, b, it)
		case it.State == session.Suspended:
			var resumed bool
			resumed, err = x.settleSuspended(ctx, b, it)
			waiting = waiting || resumed
		case time.Now().After(it.NotAfter):
			err = x.endItem(ctx, it, expired)
		default:
			waiting = true
		}
		errs = append(errs, err)
	}
	switch {
	case !waiting:
	case b.State == session.Awake:
		errs = append(errs, ignoreClosed(x.post(ctx, b.Conn, frame.Nudge{})))
	default:
		_, err = x.rouse(ctx, id, b.Tenant, b.Server)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// sweepEnded removes the mark of a request that has ended; the function that
// should have done it died.
func (x boxes) sweepEnded(ctx context.Context, it session.Item) error {
	tail, err := x.Store.Tail(ctx, it.Address.Session, it.ID)
	if err != nil || !tail.Final {
		return err
	}
	return x.endedItem(ctx, it)
}

// endedItem removes the mark of a request that has its end in the log. If the end
// has to be pushed, the mark stays while its generation lives: the runner sends
// the batch until it is acked, and should it be lost before, the mark says that
// nobody knows whether the client has the end.
func (x boxes) endedItem(ctx context.Context, it session.Item) error {
	if it.Address.Pushed() {
		return nil
	}
	return x.Store.DeleteItem(ctx, it.Box, it.ID, it.Gen)
}

func ignoreClosed(err error) error {
	if errors.Is(err, session.Closed) {
		return nil
	}
	return err
}
