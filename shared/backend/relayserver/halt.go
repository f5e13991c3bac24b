package relayserver

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Halt tries haltTries times, with pauses of haltAgain: a runner may be between two connections.
const (
	haltAgain = 200 * time.Millisecond
	haltTries = 15
)

// Halt stops the process of the session h.Session, or for "" all processes of a box. If the box is
// still starting, Halt ends the calls of the session that wait for the box, or for "" gives up the
// start. up is false if the box was asleep, so that there was nothing to stop. Halt returns when the
// runner was told, not when the processes have ended.
//
// Errors: Unavailable; the processes may have been stopped or not.
func (k *Backend) Halt(ctx context.Context, id storage.BoxID, h frame.Halt) (up bool, err error) {
	for range haltTries {
		b, err := k.Store.Box(ctx, id)
		if err != nil {
			return false, err
		}
		switch b.State {
		case storage.Asleep:
			return false, nil
		case storage.Starting:
			err = k.haltStart(ctx, b, h)
		case storage.Awake:
			err = k.post(ctx, b.Conn, h)
		}
		if !errors.Is(err, storage.Closed) && !errors.Is(err, storage.Conflict) {
			return err == nil, err
		}
		if err := storage.Rest(ctx, haltAgain); err != nil {
			return false, err
		}
	}
	return false, storage.Errorf(storage.Unavailable, "the box has no connection at the moment, so it could not be told to stop; try again")
}

// haltStart is Halt for a box that is starting. A runner whose start was given up learns at
// its hello that its generation is over.
func (k *Backend) haltStart(ctx context.Context, b storage.Box, h frame.Halt) error {
	why := advised(storage.Failure{Phase: phaseUnavailable, At: time.Now()}, "the server was stopped by "+h.By+" while it started", "the request was not executed")
	if h.Session == "" {
		b.Failure = why
		return k.giveUp(ctx, b)
	}
	return k.endWaiting(ctx, b.ID, h.Session, why)
}
