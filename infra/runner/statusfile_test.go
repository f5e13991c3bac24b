package runner

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func shown(t *testing.T, folder string) []notice {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "task"+statusEnding))
	commontest.OK(t, err)
	var all []notice
	commontest.OK(t, json.Unmarshal(text, &all))
	return all
}

func TestStatusFileShowsHowEachProcessIs(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "x")
	b := newStatusFile(folder, "task", slog.New(slog.DiscardHandler))
	b.show(box.ProcessStatus{Process: "a", State: box.Staging, Detail: "one"})
	since := shown(t, folder)[0].Since
	b.show(box.ProcessStatus{Process: "a", State: box.Staging, Detail: "two"})
	if n := shown(t, folder)[0]; !n.Since.Equal(since) || n.Detail != "two" || time.Since(since) > time.Minute {
		t.Errorf("%+v, it was since %s", n, since)
	}
	for _, s := range []box.ProcessStatus{
		{Process: "a", State: box.Started, PID: 1},
		{Process: "a", State: box.Exited, PID: 1, Phase: box.PhaseMCPInit, Detail: "refused"},
		{Process: "b", State: box.Exited, Phase: box.PhaseDepInstall},
		{Process: "a", State: box.Started, PID: 2},
		{Process: "a", State: box.Started, PID: 2, Detail: "network: a.test was refused"},
		{Process: "a", State: box.Ready, PID: 2, Detail: "network: a.test was refused"},
	} {
		b.show(s)
	}
	want := []notice{{Process: "a", PID: 2, State: "ready", Detail: "network: a.test was refused", Restarts: 1}, {Process: "b", State: "exited", Phase: "dep_install"}}
	commontest.Same(t, want, shown(t, folder), cmpopts.IgnoreFields(notice{}, "Since"))
	b.remove()
	if left, _ := os.ReadDir(folder); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestStatusFileForgetsWhatIsLongGone(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	b := newStatusFile(folder, "task", slog.New(slog.DiscardHandler))
	b.show(box.ProcessStatus{Process: "runs", State: box.Ready, PID: 1})
	for i := range 3 * maxGone {
		b.show(box.ProcessStatus{Process: fmt.Sprint("p", i), State: box.Stopped})
	}
	if n := len(shown(t, folder)); n != maxGone+1 || len(b.starts) > maxGone+1 {
		t.Errorf("%d are shown", n)
	}
}
