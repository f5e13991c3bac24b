package local

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

// sweepEvery is the schedule's period while boxes run.
const sweepEvery = time.Minute

// startSweep sweeps once, for what an earlier run left behind, and then on a
// schedule. A schedule that wakes a function on an idle machine would break the
// promise that nothing runs, so it skips its turn while no box does: a box record
// that is not asleep has a task.
func (m *machine) startSweep(ctx context.Context) error {
	if !isNew(m.store) {
		select {
		case <-m.functions.sweep(nil):
		case <-ctx.Done():
		}
	}
	go func() {
		tick := time.NewTicker(sweepEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if m.boxesRun(ctx) {
					m.functions.sweep(nil)
				}
			}
		}
	}()
	return nil
}

// isNew says of a store whether nobody can have left anything behind in it.
func isNew(store string) bool {
	path, ok := strings.CutPrefix(store, sqlite)
	if !ok {
		return false
	}
	_, err := os.Stat(path)
	return errors.Is(err, os.ErrNotExist)
}

func (m *machine) boxesRun(ctx context.Context) bool {
	tasks, err := m.boxes.Tasks(ctx)
	if err != nil {
		return false
	}
	for _, t := range tasks {
		if t.State != fleet.Stopped {
			return true
		}
	}
	return false
}
