package relayserver_test

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestABoxLearnsWhichSessionsAreOfOnePrincipalAndNothingElse(t *testing.T) {
	box := &posts{frames: map[string][]frame.Frame{}}
	c := configOf(t, storagetest.NewMemory())
	c.Poster = box
	hash := func(principal, server string) string {
		d := callOf("t", server)
		d.Address.Session, d.Address.Stream = storage.NewID(), storage.NewStreamID()
		d.Client.Principal = principal
		if _, err := relayserver.NewBackend(c).Deliver(t.Context(), d, storage.Box{ID: d.Address.Box, State: storage.Awake, Conn: "c", Gen: 1}); err != nil {
			t.Fatal(err)
		}
		sent := box.frames["c"]
		return sent[len(sent)-1].(frame.Deliver).Principal
	}
	ann := hash("ann@example.org", "s")
	if again := hash("ann@example.org", "s"); again != ann || ann == "" || strings.Contains(ann, "ann") {
		t.Errorf("one principal is %q and %q", ann, again)
	}
	if bob, elsewhere := hash("bob@example.org", "s"), hash("ann@example.org", "other"); bob == ann || elsewhere == ann {
		t.Errorf("ann is %q, bob %q, and ann in another box %q", ann, bob, elsewhere)
	}
}
