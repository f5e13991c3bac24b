package pprofsock_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/operate/pprofsock"
)

// folder returns a folder with a short path: the path of a socket may have about 100
// bytes.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "p") //nolint:usetesting // t.TempDir is too long for a socket
	commontest.OK(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestAProgramGivesProfilesOfItself(t *testing.T) {
	dir := folder(t)
	commontest.OK(t, pprofsock.Serve(dir, "me"))
	sockets, err := filepath.Glob(filepath.Join(dir, "me-*.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatal(sockets, err)
	}
	var none bytes.Buffer
	if err := pprofsock.Take(t.Context(), sockets[0], time.Hour, &none); err != nil || none.Len() > 0 {
		t.Errorf("of an hour: %d bytes, %v", none.Len(), err)
	}
	for _, cpu := range []time.Duration{20 * time.Millisecond, 0, 20 * time.Millisecond} {
		var out bytes.Buffer
		commontest.OK(t, pprofsock.Take(t.Context(), sockets[0], cpu, &out))
		if gzip := []byte{0x1f, 0x8b}; !bytes.HasPrefix(out.Bytes(), gzip) {
			t.Errorf("of %s: %d bytes that begin with %.10q, want a profile", cpu, out.Len(), out.Bytes())
		}
	}
}
