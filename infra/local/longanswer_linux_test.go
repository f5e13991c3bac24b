package local

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// BenchmarkALongAnswer says how many bytes are held at once for each byte of a long answer, at
// most, from the pipe of its server to the connection of its client. The answer has 15 MiB.
func BenchmarkALongAnswer(b *testing.B) {
	m := withStdio(b, io.Discard)
	c := open(b, m.public.address(0)+"/one/mcp")
	c.pid("pid")
	c.long() // makes what stays
	held := 0.0
	for b.Loop() {
		before, stop := live(), make(chan struct{})
		most := make(chan uint64, 1)
		go func() {
			peak := before
			for {
				select {
				case <-stop:
					most <- peak
					return
				default:
					peak = max(peak, live())
				}
			}
		}()
		size := c.long()
		close(stop)
		held = max(held, float64(<-most-before)/float64(size))
	}
	b.ReportMetric(held, "held/byte")
}

// live returns the bytes of all objects on the heap that are in use.
func live() uint64 {
	runtime.GC()
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	return now.HeapAlloc
}

// long calls the tool fill, and returns the length of the answer.
func (c *client) long() int64 {
	c.t.Helper()
	r, err := http.NewRequestWithContext(context.WithoutCancel(c.t.Context()), http.MethodPost, c.url, strings.NewReader(call("fill")))
	commontest.OK(c.t, err)
	r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Mcp-Session-Id": {c.session}, "Mcp-Protocol-Version": {"2025-11-25"}}
	res, err := http.DefaultClient.Do(r)
	commontest.OK(c.t, err)
	defer func() { _ = res.Body.Close() }()
	n, err := io.Copy(io.Discard, res.Body)
	commontest.OK(c.t, err)
	return n
}
