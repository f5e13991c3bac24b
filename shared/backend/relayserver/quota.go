package relayserver

import (
	"context"
	"log/slog"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// room finds out whether a box may start, and notes which boxes are full.
type room struct {
	store        storage.Store
	boxesOf      func(ctx context.Context, tenant string) int
	waitingCalls int
	log          *slog.Logger
}

// admit returns Busy if a request needs a box that its tenant may not start now. It also
// returns Busy if the largest permitted number of requests waits for the box. It runs
// before the request has any trace.
func (r room) admit(ctx context.Context, d sessions.Delivery, box storage.Box) error {
	if box.State == storage.Awake {
		return nil
	}
	if box.State == storage.Asleep {
		if err := r.allow(ctx, d.Box, d.Client.Tenant); err != nil {
			return err
		}
	}
	if r.waitingCalls <= 0 {
		return nil
	}
	items, err := r.store.Items(ctx, d.Box)
	if err != nil {
		return err
	}
	waiting := 0
	for _, it := range items {
		if it.State == storage.Waiting {
			waiting++
		}
	}
	if waiting < r.waitingCalls {
		return nil
	}
	return storage.Errorf(storage.Busy, "%d requests already wait for the box of server %q, which is still starting, and no more may wait: try again in some seconds", waiting, d.Server)
}

// allow checks the quota of a tenant's running boxes before the box id is woken. It
// returns Busy if the tenant's other boxes already use up the quota. It runs before the
// request has any trace, since an accepted request is executed whatever the quota. So
// callers at the same moment may start a few boxes too many, and so may a caller of a
// store whose index lags.
//
// allow costs nothing without a quota. With one it costs a Due. If there seem to be too
// many boxes it also reads each of them, since Due includes sleeping boxes with waiting
// messages.
func (r room) allow(ctx context.Context, id storage.BoxID, tenant string) error {
	if r.boxesOf == nil {
		return nil
	}
	most := r.boxesOf(ctx, tenant)
	if most <= 0 {
		return nil
	}
	due, err := r.store.Due(ctx)
	if err != nil {
		return err
	}
	var others []storage.BoxID
	for _, other := range due {
		// The part after the last slash is the name of the server. Such names have no
		// slash.
		if i := strings.LastIndexByte(string(other), '/'); other != id && i >= 0 && string(other[:i]) == tenant {
			others = append(others, other)
		}
	}
	if len(others) < most {
		return nil
	}
	up := 0
	for _, other := range others {
		b, err := r.store.Box(ctx, other)
		if err != nil {
			return err
		}
		if b.State != storage.Asleep {
			up++
		}
	}
	if up < most {
		return nil
	}
	return storage.Errorf(storage.Busy, "%d boxes run, as many as one tenant may have: try again when one of them has fallen asleep", up)
}
