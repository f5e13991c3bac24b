package native

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// grace is how long an instance waits for another one before it does the work itself.
const grace = 10 * time.Second

// Sweep does the due work for calls of native servers, in case no other instance does it.
// It goes on after a call that fails, and returns all errors joined. Several Sweeps may
// run at the same time, and a Sweep may be repeated.
func (k *Backend) Sweep(ctx context.Context) error {
	due, err := k.Store.Due(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, box := range due {
		if !k.Owns(box) {
			continue
		}
		items, err := k.Store.Items(ctx, box)
		errs = append(errs, err)
		for _, it := range items {
			errs = append(errs, k.resolve(ctx, it))
		}
	}
	return errors.Join(errs...)
}

// resolve makes up for an instance that died while it executed the request of an item, for an
// invocation or alarm that was lost, or for a client that does not answer. it.Raw may be nil.
func (k *Backend) resolve(ctx context.Context, it storage.Item) error {
	now := time.Now()
	switch {
	case k.gone(it):
		if whole, err := k.whole(ctx, it); err != nil {
			return err
		} else if k.noted(whole) && whole.Gen == it.Gen {
			return k.invokeAgain(ctx, whole)
		}
		return k.end(ctx, it, lost(it, phaseRuntime, "the function that executed the request is gone"))
	case it.State == storage.Waiting && now.After(it.NotAfter):
		why := "no function executed the request within " + validity.String()
		if it.Round == 0 {
			why += "; it was not executed, send it again"
		}
		return k.end(ctx, it, lost(it, phaseUnavailable, why))
	case it.State == storage.Waiting && now.After(it.Created.Add(grace)):
		return k.invokeAgain(ctx, it)
	case it.State == storage.Suspended && len(it.Questions) == 0 && now.After(it.NotAfter.Add(grace)):
		return k.invokeAgain(ctx, it)
	case it.State == storage.Suspended && len(it.Questions) > 0:
		return k.resolveAsking(ctx, it, now)
	default:
		return nil
	}
}

// noted reports whether the instance of an item is gone and another can go on with the request.
// Only a request of an [Executor] can go on; see Request.Note.
func (k *Backend) noted(it storage.Item) bool {
	return it.Raw != nil && k.gone(it)
}

// gone reports whether what executed the request of an item has ended. Gen is 0 in an item of [Backend.end].
func (k *Backend) gone(it storage.Item) bool {
	return it.State == storage.Taken && (time.Now().After(it.NotAfter) || it.Gen != 0 && it.NotAfter.Add(-lease).Before(k.Since))
}

// invokeAgain starts another invocation for an item whose invocation was lost.
func (k *Backend) invokeAgain(ctx context.Context, it storage.Item) error {
	if k.Invoke != nil {
		return k.invoke(ctx, it)
	}
	it, err := k.whole(ctx, it)
	if err != nil || it.Raw == nil {
		return err
	}
	return k.resume(ctx, it, it.Raw, false)
}

// resolveAsking is resolve for a call that waits for its client. It ends the call and removes its
// item if the log has the end of the call, its session has ended, its time is over, or its
// questions were never written. Otherwise it goes on with the call if all questions are answered.
func (k *Backend) resolveAsking(ctx context.Context, it storage.Item, now time.Time) error {
	tail, err := k.Store.Tail(ctx, it.Address.Session, it.ID)
	switch {
	case err != nil:
		return err
	case tail.Final || now.After(it.NotAfter):
		within := it.NotAfter.Sub(it.Created).Round(time.Millisecond)
		return k.end(ctx, it, lost(it, phaseToolCall, "nobody answered within "+within.String()+" (answer_timeout_sec), and the server needs an answer"))
	case tail.Last < it.Base && now.After(it.Created.Add(lease)):
		return k.end(ctx, it, lost(it, phaseRuntime, "the function that executed the request ended before it could ask"))
	}
	s, _, err := k.Store.Load(ctx, it.Address.Session, "")
	if errors.Is(err, storage.NotFound) || err == nil && s.State == storage.Ended {
		return k.end(ctx, it, sessionEnded(it))
	}
	if err != nil {
		return err
	}
	return k.answered(ctx, it)
}
