package relayhost_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/relay/frametest"
	"github.com/dormouse-mcp/dormouse/shared/relay/relayhost"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
)

// caught keeps the frames that are posted to a box.
type caught struct{ frames []frametest.Frame }

func (c *caught) Post(_ context.Context, _ string, data []byte) error {
	f, err := frametest.Decode(data)
	c.frames = append(c.frames, f)
	return err
}

func TestABoxLearnsWhichSessionsAreOfOnePrincipalAndNothingElse(t *testing.T) {
	box := &caught{}
	c := configOf(t, sessiontest.NewMemory())
	c.Poster = box
	hash := func(principal, server string) string {
		id := session.BoxFor("t", server)
		_, err := relayhost.NewBackend(c).Deliver(t.Context(), host.Delivery{
			Address: session.Address{Session: session.NewID(), Stream: session.StreamID(session.NewID()), Box: id, Principal: principal, Requests: []json.RawMessage{json.RawMessage("1")}},
			Client:  session.Session{Tenant: "t", Server: server, Principal: principal}, Server: server, Raw: []byte(`{}`),
		}, session.Box{ID: id, State: session.Awake, Conn: "c", Gen: 1})
		if err != nil {
			t.Fatal(err)
		}
		return box.frames[len(box.frames)-1].Principal
	}
	ann := hash("ann@example.org", "s")
	if again := hash("ann@example.org", "s"); again != ann || ann == "" || strings.Contains(ann, "ann") {
		t.Errorf("one principal is %q and %q", ann, again)
	}
	if bob, elsewhere := hash("bob@example.org", "s"), hash("ann@example.org", "other"); bob == ann || elsewhere == ann {
		t.Errorf("ann is %q, bob %q, and ann in another box %q", ann, bob, elsewhere)
	}
}
