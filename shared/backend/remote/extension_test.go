package remote_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// posts posts a message as a client of 2026-07-28, or of 2025-11-25 in a session. It
// returns the body of the answer and the session.
func (w *world) posts(method, message, in string) (answer, session string) {
	w.t.Helper()
	var headers []string
	switch {
	case in != "":
		headers = []string{wire.HeaderSessionID, in, wire.HeaderProtocolVersion, wire.V20251125}
	case method != wire.MethodInitialize:
		headers = []string{wire.HeaderMethod, method, wire.HeaderProtocolVersion, wire.V20260728}
	}
	answer, header := sent(w.t, post(w.t, w.url, message, headers...))
	return answer, header.Get(wire.HeaderSessionID)
}

// The standalone stream of the server is open while a request is there, if both ends declare
// extensions. Its notifications of extensions go to the standalone stream of the client.
func TestNotificationOfAnExtensionComesApartFromTheCall(t *testing.T) {
	store := storagetest.NewMemory()
	for capabilities, hears := range map[string]bool{`{"extensions":{"com.example/tick":{}}}`: true, `{}`: false} {
		up := newSpeaker(t, "2025-11-25")
		w := newWorld(t, store, up)
		answer, in := w.posts(wire.MethodInitialize, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`,"clientInfo":{"name":"c","version":"1"}}}`, "")
		commontest.Contains(t, "initialize", `"extensions":{"com.example/tick":{}}`, answer)
		w.posts("", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, in)
		w.posts("", `{"jsonrpc":"2.0","id":1,"method":"com.example/tick"}`, in)
		tail, err := store.Tail(t.Context(), storage.ID(in), storage.Standalone)
		if err != nil || (tail.Last == 1) != hears || (up.gets.Load() == 1) != hears {
			t.Errorf("%s: %d messages apart, over %d streams, %v", capabilities, tail.Last, up.gets.Load(), err)
		}
	}
}
