package local

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

// sweepEvery is the time between sweeps while boxes run.
const sweepEvery = time.Minute

// startSweep sweeps once, for what an earlier run left behind, and then on a
// schedule. The schedule skips its turn while no box runs, to keep the promise that
// nothing runs on an idle machine. It misses nothing: a box record that is not asleep
// has a task.
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

// isNew reports that a store is new, so that no earlier run left anything in it.
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
