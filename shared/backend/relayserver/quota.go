package relayserver

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// admit returns Busy if a request needs a box that its tenant may not start now, or if too
// many requests wait for the box already. The caller must not have stored anything of the
// request.
func (x *boxes) admit(ctx context.Context, d sessions.Delivery, box storage.Box) error {
	if box.State == storage.Awake {
		return nil
	}
	if box.State == storage.Asleep {
		if err := x.allow(ctx, d.Box, d.Client.Tenant); err != nil {
			return err
		}
	}
	if x.WaitingCalls <= 0 {
		return nil
	}
	items, err := x.Store.Items(ctx, d.Box)
	if err != nil {
		return err
	}
	waiting := 0
	for _, it := range items {
		if it.State == storage.Waiting {
			waiting++
		}
	}
	if waiting < x.WaitingCalls {
		return nil
	}
	return storage.Errorf(storage.Busy, "%d requests already wait for the box of server %q, which is still starting, and no more may wait: try again in some seconds", waiting, d.Server)
}

// allow returns Busy if the other boxes of a tenant use up its quota of running boxes. Several
// callers at a time may start a few boxes too many.
//
// Store.Due names the boxes that run, and sleeping ones with items. Only if these are enough to use
// up the quota, allow reads their records.
func (x *boxes) allow(ctx context.Context, id storage.BoxID, tenant string) error {
	if x.BoxesOf == nil {
		return nil
	}
	most := x.BoxesOf(ctx, tenant)
	if most <= 0 {
		return nil
	}
	due, err := x.Store.Due(ctx)
	if err != nil {
		return err
	}
	var others []storage.BoxID
	for _, other := range due {
		if of, _ := other.Parts(); other != id && of == tenant {
			others = append(others, other)
		}
	}
	if len(others) < most {
		return nil
	}
	up := 0
	for _, other := range others {
		b, err := x.Store.Box(ctx, other)
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
	return storage.Errorf(storage.Busy, "as many boxes run as one tenant may have (%d): try again when one of them has fallen asleep", up).
		Because(&storage.Limited{Kind: "room", Scope: "tenant", After: time.Second})
}
