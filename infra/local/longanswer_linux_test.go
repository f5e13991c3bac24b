package local

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// BenchmarkALongAnswer says how many bytes are held at once for each byte of a long answer, at
// most, from the pipe of its server to the connection of its client, by the host and by a box that
// is a process. The answer has 15 MiB.
func BenchmarkALongAnswer(b *testing.B) {
	for name, apart := range map[string]bool{"inside": false, "process": true} {
		b.Run(name, func(b *testing.B) {
			ofRunner := filepath.Join(b.TempDir(), "held")
			c := boxed(b, apart, ofRunner)
			c.pid("pid")
			c.long() // makes what stays
			all := func() uint64 { return live() + heldIn(ofRunner) }
			held := 0.0
			for b.Loop() {
				before, stop := all(), make(chan struct{})
				most := make(chan uint64, 1)
				go func() {
					peak := before
					for {
						select {
						case <-stop:
							most <- peak
							return
						default:
							peak = max(peak, all())
						}
					}
				}()
				size := c.long()
				close(stop)
				held = max(held, float64(<-most-before)/float64(size))
			}
			b.ReportMetric(held, "held/byte")
		})
	}
}

// live returns the bytes of all objects on the heap that are in use.
func live() uint64 {
	runtime.GC()
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	return now.HeapAlloc
}

// tellHeld keeps writing to a file what is live in this program.
func tellHeld(file string) {
	for {
		if os.WriteFile(file+".new", binary.LittleEndian.AppendUint64(nil, live()), 0o600) != nil || os.Rename(file+".new", file) != nil {
			return
		}
	}
}

// heldIn reads what tellHeld has written; 0 if there is no such file.
func heldIn(file string) uint64 {
	text, err := os.ReadFile(file)
	if err != nil || len(text) != 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(text)
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
