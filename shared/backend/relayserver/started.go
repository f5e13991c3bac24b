package relayserver

import (
	"bytes"
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// maxFingerprint is the longest fingerprint of the lists of a process, in bytes.
const maxFingerprint = 4 << 10

// started compares the lists of a fresh process (tools, prompts, resources) with the handshake
// record. If they differ, started makes the box tell the client that the server's lists have
// changed.
func (r runner) started(ctx context.Context, f frame.Status, t Ticket) error {
	if len(f.Lists) > maxName || len(f.Payload) > maxFingerprint {
		return storage.Errorf(storage.Invalid, "a status of box %s has a fingerprint of %d bytes", f.Box, len(f.Payload))
	}
	if t.Digest == "" {
		return nil
	}
	s, news, err := sessions.NoteStart(ctx, r.h.Store, t.Address, sessions.Start{Kind: f.Lists, Own: f.Own, Gen: f.Gen, Lists: bytes.Clone(f.Payload)})
	if err != nil || !news {
		return err
	}
	r.h.Log.InfoContext(ctx, "a fresh process lists otherwise than the record", "box", f.Box, "server", s.Server, "session_id", s.ID)
	to := storage.Address{
		Session: s.ID, Stream: storage.NewStreamID(), Conn: t.Conn, EventIDs: t.EventIDs, LegacySSE: t.LegacySSE, Through: t.Through,
		Digest: t.Digest, Box: t.Box, Moved: true, Held: t.Held, Trace: t.Trace,
	}
	d := sessions.Delivery{Address: to, Client: s, Server: s.Server, Raw: wire.NewNotification(wire.NotifyInitialized, nil)}
	tell := r.h.deliverFrame(d, storage.Box{Gen: f.Gen}, time.Now().Add(validity), false)
	tell.Looks = true
	return except(storage.Closed, r.h.post(ctx, r.conn, tell))
}
