package relayserver_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A hostile box may answer initialize with anything. The relay function keeps the answer
// only for the box's own tenant, and only under a known protocol version.
func TestHandshakeIsKeptForItsOwnTenantAndVersionsOnly(t *testing.T) {
	s := newSiege(t)
	own := storage.RecordFor("m", "d")
	ticket := s.sealer.Seal(storage.Address{Session: "m1", Stream: "d1", Box: hostileBox, Digest: own}, hostileGen)
	for _, detail := range []string{wire.V20251125, "2099-01-01", "", "tools/list " + wire.V20251125 + " "} {
		f := frametest.Frame{
			Type: frame.TypeStatus, Box: hostileBox, Gen: hostileGen, Session: "m1", Ticket: ticket, Detail: detail, Payload: json.RawMessage(`{"evil":1}`),
		}
		if _, err := s.handle(frametest.Encode(f)); err != nil {
			t.Fatal(err)
		}
		for _, record := range []string{own, storage.RecordFor("h", "d"), "d"} {
			_, err := s.memory.Handshake(t.Context(), record, detail)
			if kept, want := err == nil, record == own && detail == wire.V20251125; kept != want || err != nil && !errors.Is(err, storage.NotFound) {
				t.Errorf("record %s of %q: %v", record, detail, err)
			}
		}
	}
}
