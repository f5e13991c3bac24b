package relayhost

import (
	"context"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// admit returns Busy if a request would need a box that its tenant may not start now.
// It also does so if as many requests wait for the box as may. It runs before the
// request has any trace.
func (x boxes) admit(ctx context.Context, d host.Delivery, box session.Box) error {
	if box.State == session.Awake {
		return nil
	}
	if box.State == session.Asleep {
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
		if it.State == session.Waiting {
			waiting++
		}
	}
	if waiting < x.WaitingCalls {
		return nil
	}
	return session.Errorf(session.Busy, "%d requests wait for the box of server %q, which is not up yet, as many as may: try again in some seconds", waiting, d.Server)
}

// allow returns Busy if the tenant has as many running boxes as it may have without the
// box id, which is about to be woken. It runs before the request has any trace, since
// an accepted request is executed whatever the quota. Callers at the same moment may
// therefore start a few boxes more, and so may a store whose index lags.
//
// allow costs nothing without a quota. With one it costs a Due. If there seem to be too
// many boxes it also reads each of them, since Due includes sleeping boxes with waiting
// messages.
func (x boxes) allow(ctx context.Context, id session.BoxID, tenant string) error {
	if x.TenantBoxes <= 0 {
		return nil
	}
	due, err := x.Store.Due(ctx)
	if err != nil {
		return err
	}
	var others []session.BoxID
	for _, other := range due {
		// The part behind the last slash is the server's name, which has no slash in
		// it.
		if i := strings.LastIndexByte(string(other), '/'); other != id && i >= 0 && string(other[:i]) == tenant {
			others = append(others, other)
		}
	}
	if len(others) < x.TenantBoxes {
		return nil
	}
	up := 0
	for _, other := range others {
		b, err := x.Store.Box(ctx, other)
		if err != nil {
			return err
		}
		if b.State != session.Asleep {
			up++
		}
	}
	if up < x.TenantBoxes {
		return nil
	}
	return session.Errorf(session.Busy, "%d boxes run, as many as one tenant may have: try again when one of them has fallen asleep", up)
}
