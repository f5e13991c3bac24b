package runner

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestWhereSnapshotsAreKept(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		store, age string
		kept, ok   bool
		want       time.Duration
	}{
		{"", "", false, true, 14 * 24 * time.Hour},
		{"host", "", true, true, 14 * 24 * time.Hour},
		{"folder:/x", "", true, true, 14 * 24 * time.Hour},
		{"folder:/x", "3h", true, true, 3 * time.Hour},
		{"folder:/x", "0s", false, false, 0},
		{"folder:/x", "week", false, false, 0},
		{"folder:x", "", false, false, 0},
		{"s3:x", "", false, false, 0},
	} {
		k, err := newKeeping(c.store, c.age)
		if (err == nil) != c.ok || c.ok && (k.age != c.want || (k.folder != nil || k.host != nil) != c.kept) {
			t.Errorf("%q, %q: %+v, %v", c.store, c.age, k, err)
		}
	}
}

func TestOnlyWorkspacesThatAreAskedForAreKept(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	k, err := newKeeping("folder:"+filepath.Join(t.TempDir(), "snapshots"), "")
	commontest.OK(t, err)
	plain := serversfile.Server{Name: "x", Command: "a"}
	asked := plain
	asked.Box.Snapshot = serversfile.SnapshotSession
	if k.keeper(plain, "b", 1, t.TempDir(), log) != nil {
		t.Error("kept, and nothing asks for a workspace")
	}
	if k.keeper(asked, "b", 1, t.TempDir(), log) == nil {
		t.Error("not kept")
	}
	if (keeping{}).keeper(asked, "b", 1, t.TempDir(), log) != nil {
		t.Error("kept nowhere")
	}
}
