package relayserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Sweeper finds lost boxes and requests that no instance or runner ends, and repairs
// both. Every step is idempotent. A step may race with other steps, with runners and
// with waiting instances.
type Sweeper struct{ *boxes }

// NewSweeper returns a Sweeper. It does not check c.
func NewSweeper(c Config) *Sweeper { return &Sweeper{newBoxes(c)} }

// orphanAge is how old the last change of a box's record must be before Sweep stops a task that
// the record does not name.
const orphanAge = 10 * time.Minute

// Sweep compares the record of every box that is up or has items with the fleet's list of
// tasks. A box whose task is gone is lost. A task that no record names is stopped after ten
// minutes. After an error Sweep goes on with the other boxes. It returns all errors joined.
func (w *Sweeper) Sweep(ctx context.Context) error {
	due, err := w.Store.Due(ctx)
	if err != nil {
		return err
	}
	// Read the list of tasks after the records, because it then has each task that a record
	// names.
	boxes := make(map[storage.BoxID]storage.Box, len(due))
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
	if !errors.Is(err, fleet.ErrUnlisted) {
		errs = append(errs, err)
	}
	for _, id := range due {
		b, ok := boxes[id]
		if !ok {
			continue
		}
		if !w.Fleet.Traits(b.Place).Lists {
			errs = append(errs, w.compareUnlisted(ctx, b))
		} else if listed {
			errs = append(errs, w.compare(ctx, b, tasks))
		}
		errs = append(errs, w.doDue(ctx, id))
	}
	if listed {
		errs = append(errs, w.stopOrphans(ctx, boxes, tasks))
	}
	return errors.Join(errs...)
}

// compare looks for the task of a box in the fleet's list. If the task has ended without a bye,
// compare marks the box as lost, or repeats the start.
func (w *Sweeper) compare(ctx context.Context, b storage.Box, tasks []fleet.Status) error {
	at := slices.IndexFunc(tasks, func(t fleet.Status) bool { return runs(b, t) })
	var t fleet.Status
	if at >= 0 {
		t = tasks[at]
	}
	switch {
	case b.State == storage.Awake && (t.State == fleet.Stopped || at < 0 && longAgo(b.Changed, w.ListLag)):
		_, err := w.lost(ctx, b, stopFailure(t, false))
		return err
	case b.State == storage.Starting && t.State == fleet.Stopped:
		b.Failure = stopFailure(t, true)
		return w.restart(ctx, b)
	case b.State == storage.Starting && at < 0 && b.Changed.Before(w.Fleet.Traits(b.Place).Since):
		b.Failure = programEnded()
		return w.restart(ctx, b)
	}
	return nil // if the start never completes, doDue finds it overdue
}

func programEnded() storage.Failure {
	return advised(storage.Failure{Phase: phaseUnavailable, At: time.Now()}, "the program that started the box has ended meanwhile", notExecuted)
}

// runs reports whether t is the task that the record b names.
func runs(b storage.Box, t fleet.Status) bool {
	return b.State == storage.Awake && fleet.Same(b.Task, t.ID) ||
		b.State == storage.Starting && t.ClientToken == ClientToken(b.ID, b.Gen)
}

// stopOrphans stops tasks that no box record names: late starts that were given up before, and
// runners that did not end. The argument boxes has records that were read before the list of
// tasks.
func (w *Sweeper) stopOrphans(ctx context.Context, boxes map[storage.BoxID]storage.Box, tasks []fleet.Status) error {
	var errs []error
	for _, t := range tasks {
		if t.State == fleet.Stopped || runs(boxes[storage.BoxID(t.Box)], t) || w.Inside.runs(t) {
			continue
		}
		b, err := w.Store.Box(ctx, storage.BoxID(t.Box))
		if err == nil && !runs(b, t) && time.Since(b.Changed) > orphanAge {
			w.Log.WarnContext(ctx, "task stopped that no box knows", "task", t.ID, "box", t.Box, "server", t.Server)
			err = w.Fleet.Stop(ctx, t.ID, "no box knows it")
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Stopped handles the fleet's report that task t has ended. It records the loss of the box, or
// repeats its start, and does what is due for the box's requests.
func (w *Sweeper) Stopped(ctx context.Context, t fleet.Status) error {
	id := storage.BoxID(t.Box)
	settled := w.Inside.settle(ctx, w.boxes, t)
	for {
		b, err := w.Store.Box(ctx, id)
		if err != nil {
			return errors.Join(settled, err)
		}
		switch {
		case !runs(b, t):
			return errors.Join(settled, w.doDue(ctx, id))
		case b.State == storage.Awake:
			_, err = w.lost(ctx, b, stopFailure(t, false))
		default:
			b.Failure = stopFailure(t, true)
			err = w.restart(ctx, b)
		}
		if err != nil {
			return errors.Join(settled, err, w.doDue(ctx, id))
		}
		// Read the record again: the last hello of the task may have changed it meanwhile.
	}
}

// stopFailure is the failure that clients get when a task has ended. The argument starting
// says that the task ended before its first hello. t is the zero Status if the fleet has no
// record of the task any more.
func stopFailure(t fleet.Status, starting bool) storage.Failure {
	f := storage.Failure{Phase: phaseRuntime, Exit: t.ExitCode, Signal: t.Signal, At: t.Stopped}
	switch {
	case t.ID != "" && t.ExitCode == frame.ExitUnreachable && starting:
		f.Phase = phaseConnect
		return advised(f, "the box was started and could not reach the host", notExecuted)
	case t.ID != "" && starting:
		f.Phase = phaseUnavailable
		return advised(f, fmt.Sprintf("the box could not start (%s)", t.Reason), notExecuted)
	case t.ID == "":
		f.At = time.Now()
		return advised(f, "the box is gone", "whether the request was executed is not known")
	case t.Signal != "":
		return advised(f, fmt.Sprintf("the box was killed by %s before the request was finished", t.Signal), notKnown)
	default:
		return advised(f, fmt.Sprintf("the box exited with code %d before the request was finished", t.ExitCode), notKnown)
	}
}

// lost records that the generation of b ended without a bye. If another writer has changed the
// record, lost writes nothing, and written is false.
func (x *boxes) lost(ctx context.Context, b storage.Box, why storage.Failure) (written bool, err error) {
	err = x.Store.SaveBox(ctx, lose(b, why, time.Now()))
	if err == nil {
		x.emptied(ctx, b.ID)
		x.Log.WarnContext(ctx, "box lost", "box", b.ID, "server", b.Server, "generation", b.Gen, "task", b.Task,
			"exit_code", why.Exit, "signal", why.Signal)
	}
	return err == nil, except(storage.Conflict, err)
}

// restart starts a box once more after its start failed. After maxAttempts it gives the box
// up.
func (x *boxes) restart(ctx context.Context, b storage.Box) error {
	x.Log.WarnContext(ctx, "box start failed", "box", b.ID, "generation", b.Gen, "attempt", b.Attempt, "error", b.Failure.Detail)
	if b.Attempt >= maxAttempts {
		return except(storage.Conflict, x.giveUp(ctx, b))
	}
	b, token := x.lease(b, storage.NewNonce(), true)
	if err := x.Store.SaveBox(ctx, b); err != nil {
		return except(storage.Conflict, err)
	}
	b.Rev++
	_, err := x.start(ctx, b, token)
	return except(storage.Conflict, err)
}

// doDue reads the record and the items of one box, and does what other instances have left undone. It
// repeats a start that took too long, ends or releases requests of a generation that is over,
// and wakes the box for requests that wait. After an error it goes on with the other requests.
func (x *boxes) doDue(ctx context.Context, id storage.BoxID) error {
	b, err := x.Store.Box(ctx, id)
	if err != nil {
		return err
	}
	if b.State == storage.Starting && x.overdue(b) {
		b.Failure = storage.Failure{
			Phase: phaseUnavailable, Detail: fmt.Sprintf("the box did not come up within %s", x.startTimeout(b)), At: time.Now(),
		}
		if err := x.restart(ctx, b); err != nil {
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
		case it.State == storage.Taken && b.Over(it.Gen):
			var released bool
			released, err = x.overItem(ctx, b, it)
			waiting = waiting || released
		case it.State == storage.Taken:
			err = x.sweepEnded(ctx, it)
		case it.State == storage.Leftover:
			err = x.settleLeftover(ctx, b, it)
		case it.State == storage.Suspended:
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
	if waiting {
		errs = append(errs, x.wakeOrNudge(ctx, id))
	}
	return errors.Join(errs...)
}

// sweepEnded deletes the item of a request whose end is in the log.
func (x *boxes) sweepEnded(ctx context.Context, it storage.Item) error {
	tail, err := x.Store.Tail(ctx, it.Address.Session, it.ID)
	if err != nil || !tail.Final {
		return err
	}
	return x.endedItem(ctx, it)
}

// endedItem deletes the item of a request whose end is in the log. It keeps the item if the end is
// pushed to a connection: publish deletes that item after the push.
func (x *boxes) endedItem(ctx context.Context, it storage.Item) error {
	if it.Address.Pushed() {
		return nil
	}
	return x.Store.DeleteItem(ctx, it.Box, it.ID, it.Gen)
}
