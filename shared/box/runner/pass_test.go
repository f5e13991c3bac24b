package runner_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
)

func TestARunnerConnectsWithTheNewestPass(t *testing.T) {
	var passes []string
	noted := func(c *runner.Config) {
		c.Pass = "first"
		dial := c.Dial
		c.Dial = func(ctx context.Context, url string, header http.Header) (runner.Conn, error) {
			passes = append(passes, header.Get("Dormouse-Pass"))
			return dial(ctx, url, header)
		}
	}
	onBench(t, func(b *bench) {
		b.connected()
		b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen, Link: b.expect(frame.TypeHello).Link, Ticket: "second"})
		b.emptyInbox()
		b.conn.cut()
		b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen, Link: b.dialed().Link}) // of a host that gives none
		b.nothing()
		b.conn.cut()
		b.dialed()
		commontest.SameIn(t, "connected", []string{"first", "second", "second"}, passes)
	}, noted)
}
