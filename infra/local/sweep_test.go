package local

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// No box runs a call of a native server, and a killed program may lose the call's alarm.
// Then only a sweep finds the call.
func TestMachineSweepsWhileACallWaitsAndRestsOtherwise(t *testing.T) {
	folder, err := datafolder.Open(t.TempDir())
	commontest.OK(t, err)
	t.Cleanup(folder.Close)
	synctest.Test(t, func(t *testing.T) {
		m, s := idleMachine(t, 0)
		m.folder = folder
		box := storage.Box{ID: "local/job", Tenant: "local", Server: "job", Gen: 1, State: storage.Starting, Owner: "gone"}
		commontest.OK(t, s.store.SaveBox(t.Context(), box))
		commontest.OK(t, m.startSweep(t.Context()))
		time.Sleep(3*sweepEvery + time.Second) // of the synctest clock, here and below
		commontest.EqualIn(t, "sweeps, want one at the start and one each minute", 4, s.sweeps.Load())
		box.State, box.Rev = storage.Asleep, 1
		commontest.OK(t, s.store.SaveBox(t.Context(), box))
		s.sweeps.Store(0)
		time.Sleep(10 * sweepEvery)
		commontest.EqualIn(t, "sweeps of a machine on which nothing waits", 0, s.sweeps.Load())
	})
}
