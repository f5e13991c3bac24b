package local

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/memory"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// The box of a server is asleep. Its operator stops one process, ends a session, or stops all of
// the server: the memory that was kept for them is deleted, and nothing else.
func TestWhatAnOperatorEndsInASleepingBoxKeepsNoMemory(t *testing.T) {
	m := started(t, func(c *Config) {
		keeps := `{"command":"x","x-dormouse":{"box":{"memory":"keep","snapshot":"principal"}}}`
		commontest.OK(t, os.WriteFile(c.Servers, []byte(`{"mcpServers":{"kept":`+keeps+`,"other":`+keeps+`}}`), 0o600))
	})
	folder, store := snapshot.NewFolder(m.snapshots()), m.functions.Records()
	root, err := memory.OpenRoot(filepath.Join(m.folder.Path, memory.KeyFile))
	commontest.OK(t, err)
	key, err := root.Tenant("local")
	commontest.OK(t, err)
	falls := func(server string) (id string) {
		t.Helper()
		s := storage.Session{ID: storage.NewID(), Tenant: "local", Server: server, State: storage.Ready, Expires: time.Now().Add(time.Hour)}
		commontest.OK(t, store.Create(t.Context(), s))
		id = string(s.ID)
		k := snapshot.NewKeeper(snapshot.Config{Store: folder, Generation: 1, Key: func(owner string) string { return snapshot.Key(string(s.Box()), owner) }})
		_, err := k.Restore(t.Context(), id, "principal-"+id, t.TempDir())
		commontest.OK(t, err)
		kept := &memory.Kept{Store: k, Key: key, Box: string(s.Box()), Generation: 1}
		_, err = kept.Save(t.Context(), memory.Process{Name: id, Owner: "principal-" + id, Workspace: t.TempDir()}, func(_ context.Context, to io.Writer) (any, error) {
			_, err := to.Write(make([]byte, 4)) // no chunk
			return nil, err
		})
		commontest.OK(t, err)
		return id
	}
	stopped, ended, rest, other := falls("kept"), falls("kept"), falls("kept"), falls("other")
	for _, step := range []struct {
		method, path string
		left         []string
	}{
		{http.MethodPost, "sessions/" + stopped + "/stop", []string{ended, rest, other}},
		{http.MethodDelete, "sessions/" + ended, []string{rest, other}},
		{http.MethodPost, "servers/kept/stop", []string{other}},
	} {
		var told api.Stopped
		if _, err := operate(t, m.folder.Path, step.method, step.path, &told); err != nil || step.method == http.MethodPost && len(told.Boxes) != 1 {
			t.Errorf("%s: %+v, %v", step.path, told, err)
		}
		var left []string
		for _, s := range memory.Sleepers(folder) {
			left = append(left, s.Process)
		}
		slices.Sort(left)
		slices.Sort(step.left)
		commontest.EqualIn(t, "memory after "+step.path, strings.Join(step.left, " "), strings.Join(left, " "))
	}
	_, err = m.functions.Operators().Halt(t.Context(), storage.BoxFor("local", "other"), frame.Halt{Keep: true})
	commontest.OK(t, err)
	commontest.EqualIn(t, "memory after the end of dormouse run", 1, len(memory.Sleepers(folder)))
}
