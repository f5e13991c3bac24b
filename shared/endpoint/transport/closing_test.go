package transport_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A server that closes the stream before any message does not get a JSON answer, even if
// the result follows within the window.
func TestACloseIsNeverAPlainAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("pushy")
		w.backend.tool("closing", func(r run) { r.pause("", 3*time.Second); r.end(`{}`) })
		a := c.call("closing")
		if got := a.header.Get("Content-Type"); !strings.HasPrefix(got, wire.MediaSSE) {
			t.Fatalf("got %s %s", got, a.body)
		}
		commontest.SameIn(t, "the rest", []string{resultOf(`{}`)}, c.get(a.lastID(t)).datas(t))
	})
}
