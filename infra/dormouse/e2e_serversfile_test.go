//go:build e2e

package dormouse_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// The functions get the servers that dormouse run has read. If a function starts while the
// file is half saved, it hosts the same servers as before.
func TestE2EFunctionsDoNotReadTheServersFile(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil}).asPrograms()
	m.start()
	c := m.session("one")
	if got := c.text("count", ""); got != "1" {
		t.Fatalf("counts %s", got)
	}
	write(t, m.servers, `{"mcpServers": {"one": {"comm`)
	m.killFunctions("http", "relay")
	commontest.EqualIn(t, "the session counts", "2", c.text("count", ""))
	commontest.EqualIn(t, "a new session counts", "1", m.session("one").text("count", ""))
	copies, err := filepath.Glob(filepath.Join(m.data, "accepted-*.json"))
	if err != nil || len(copies) != 1 {
		t.Fatal(copies, err)
	}
	if info, err := os.Stat(copies[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	m.interrupt()
	if _, err := os.Stat(copies[0]); !errors.Is(err, os.ErrNotExist) {
		t.Error("the copy, which holds secrets, is still there:", err)
	}
}
