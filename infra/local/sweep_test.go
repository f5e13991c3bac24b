package local

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	boxes "github.com/dormouse-mcp/dormouse/shared/backend/fleet/process"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

type sweeps struct {
	Functions
	store storage.Store
	n     atomic.Int64
}

func (s *sweeps) Records() storage.Store { return s.store }

func (s *sweeps) Boxes() []fleet.Status { return nil }

func (s *sweeps) Sweep(*fleet.Status) <-chan struct{} {
	s.n.Add(1)
	return closed()
}

// No box runs a call of a native server, and a killed program may lose the call's alarm.
// Then only a sweep finds the call.
func TestMachineSweepsWhileACallWaitsAndRestsOtherwise(t *testing.T) {
	folder, err := datafolder.Open(t.TempDir())
	commontest.OK(t, err)
	t.Cleanup(folder.Close)
	synctest.Test(t, func(t *testing.T) {
		store := storagetest.NewMemory()
		s := &sweeps{store: store}
		m := &machine{folder: folder, functions: s, boxes: boxes.NewPool(boxes.Config{})}
		defer func() { _ = m.boxes.Close(t.Context()) }()
		box := storage.Box{ID: "local/job", Tenant: "local", Server: "job", Gen: 1, State: storage.Starting, Owner: "gone"}
		commontest.OK(t, store.SaveBox(t.Context(), box))
		commontest.OK(t, m.startSweep(t.Context()))
		time.Sleep(3*sweepEvery + time.Second) // of the synctest clock, here and below
		commontest.EqualIn(t, "sweeps, want one at the start and one each minute", 4, s.n.Load())
		box.State, box.Rev = storage.Asleep, 1
		commontest.OK(t, store.SaveBox(t.Context(), box))
		s.n.Store(0)
		time.Sleep(10 * sweepEvery)
		commontest.EqualIn(t, "sweeps of a machine on which nothing waits", 0, s.n.Load())
	})
}
