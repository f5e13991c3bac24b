package dormouse

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A file that somebody else has made may be of any size. Commands stop reading at its
// limit.
func TestFilesAreReadUpToTheirLimit(t *testing.T) {
	const mib = 1 << 20 // Claude Code keeps much else in its file
	for line, limit := range map[string]int{
		"import big":                          mib,
		"import .claude.json":                 64 * mib,
		"connect cursor a --write --file=big": 64 * mib,
		"push big":                            mib,
		"image --servers=big":                 mib,
		"enable a --servers=big":              mib,
		"check big":                           mib,
	} {
		t.Run(line, func(t *testing.T) {
			d := newDesk(t, "-- servers.json --\n{\"mcpServers\":{\"a\":{\"command\":\"x\"}}}\n")
			name := "big"
			if strings.Contains(line, ".claude.json") {
				name = ".claude.json"
			}
			pipe := filepath.Join(d.dir, name)
			commontest.OK(t, syscall.Mkfifo(pipe, 0o600))
			wrote := make(chan int)
			go func() {
				f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
				n := 0
				for chunk := bytes.Repeat([]byte{' '}, 64<<10); err == nil && n < 2*limit; n += len(chunk) {
					_, err = f.Write(chunk)
				}
				_ = f.Close()
				wrote <- n
			}()
			said, code := d.run(line)
			// If the command has not opened the pipe, its other end must not wait for ever.
			if f, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil {
				_ = f.Close()
			}
			if n := <-wrote; n > limit+mib/4 {
				t.Errorf("it read %d bytes, and then said %.300s", n, said)
			}
			if code == exitDone || !strings.Contains(said, "larger than") {
				t.Errorf("%d: %.300s", code, said)
			}
		})
	}
}
