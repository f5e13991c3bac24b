package relayhost

import (
	"context"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// admit is Busy if a request would need a box that its tenant may not have now, or
// would wait for one that too many wait for already. It is asked before there is any
// trace of the request.
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

// allow is Busy if a tenant has as many boxes as it may have, and the one that is
// about to be woken is not among them. It is asked before there is any trace of the
// request: what was accepted once is executed, whatever the quota. So callers at the
// same moment may together start a few more, as may an index of the store that lags.
//
// Without a quota it costs nothing; with one a Due, and a read of each box when there
// seem to be too many, since those that have messages waiting are due as well.
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
		// The server's name, behind the last slash, has none in it.
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
