package relayhost

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/host"
)

// maxFingerprint bounds what a runner says about the lists of a fresh process, in bytes.
const maxFingerprint = 4 << 10

// started compares what a fresh process lists with the record. If it lists otherwise,
// started has the box tell the client of the process. The message is one that a box
// executes without its process.
func (h *Handler) started(ctx context.Context, conn string, f frame.Status, t Ticket) error {
	if len(f.Lists) > maxName || len(f.Payload) > maxFingerprint {
		return session.Errorf(session.Invalid, "a status of box %s has a fingerprint of %d bytes", f.Box, len(f.Payload))
	}
	if t.Digest == "" {
		return nil
	}
	s, news, err := host.NoteStart(ctx, h.Store, t.Address, host.Start{Kind: f.Lists, Own: f.Own, Gen: f.Gen, Lists: bytes.Clone(f.Payload)})
	if err != nil || !news {
		return err
	}
	h.Log.InfoContext(ctx, "a fresh process lists otherwise than the record", "box", f.Box, "server", s.Server, "session_id", s.ID)
	a := session.Address{
		Session: s.ID, Stream: session.NewStreamID(), Conn: t.Conn, EventIDs: t.EventIDs, LegacySSE: t.LegacySSE, Through: t.Through,
		Digest: t.Digest, Box: t.Box, Moved: true, Trace: t.Trace,
	}
	d := host.Delivery{Address: a, Client: s, Server: s.Server, Raw: wire.NewNotification(wire.NotifyInitialized, nil)}
	tell := h.deliverFrame(d, session.Box{Gen: f.Gen}, time.Now().Add(validity), false)
	tell.Looks = true
	if err := h.post(ctx, conn, tell); !errors.Is(err, session.Closed) {
		return err
	}
	return nil
}
