package relay_test

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// blindFound are seeds whose worlds show a defect without some rule: the first three if
// runners do not drain, the fourth one if a draining runner drops what it does not execute,
// and the last one if an invited runner takes frames for its Executor before it has one.
var blindFound = []uint64{439, 787, 901, 945, 900097}

// TestSimulationOfAPlaceThatDoesNotList starts boxes in a place that neither lists its
// tasks nor stops them. There a start comes twice, late or never, and a task is killed
// when its life is over. The second attempt of a wake goes to a place that lists its
// tasks.
//
//	go test ./shared/backend/relay -run PlaceThatDoesNotList -sim.seed 1 -sim.seeds 1000 -v
func TestSimulationOfAPlaceThatDoesNotList(t *testing.T) {
	simulate(t, worlds(2, blindFound), func(w *world) {
		rng := w.random("blind")
		if rng.IntN(3) > 0 {
			f := faults{
				runTwice: rng.Float64(), bootSlow: 0.3 * rng.Float64(), bootDies: 0.3 * rng.Float64(),
				stoppedLost: rng.Float64(), stoppedTwice: 0.3 * rng.Float64(), killAtWork: 0.05 * rng.Float64(),
			}
			if rng.IntN(2) == 0 {
				f.kill, f.cut = 10*time.Minute, 5*time.Minute
			}
			w.only(f)
		}
		w.drains = blindLongest
		w.config.Place = func(b storage.Box) string {
			if b.Attempt == 1 {
				return blindPlace
			}
			return ""
		}
	})
}
