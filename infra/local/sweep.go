package local

import (
	"context"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/box/memory"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// expireEvery is the time between two calls of expire, as a multiple of sweepEvery.
const expireEvery = 60

// expire deletes saved memory of processes that is too old to be used again.
func (m *machine) expire(ctx context.Context) {
	if n, err := snapshot.NewFolder(m.snapshots()).Expire(ctx, memory.MaxAge); n > 0 || err != nil {
		m.log.Info("memory removed that is too old to be thawed", "count", n, "error", err)
	}
}

// sweepEvery is the time between two cleanups (sweeps) while boxes run.
const sweepEvery = time.Minute

// startSweep cleans up once after an earlier run, and then sweeps on a schedule. It skips a sweep
// while no box runs and no call waits, because nothing should run on an idle machine.
func (m *machine) startSweep(ctx context.Context) error {
	if !m.upkeep.unused {
		select {
		case <-m.functions.Sweep(nil):
		case <-ctx.Done():
		}
	}
	go func() {
		for n := 0; ; n++ {
			if n%expireEvery == 0 {
				m.expire(ctx)
			}
			if storage.Rest(ctx, sweepEvery) != nil {
				return
			}
			if m.boxesRun(ctx) || callsWait(ctx, m.functions.Records()) {
				m.functions.Sweep(nil)
			}
		}
	}()
	return nil
}

// tasksOf lists the boxes that run, and those that stopped a short time ago.
func tasksOf(ctx context.Context, m *machine) ([]fleet.Status, error) {
	all, err := m.boxes.Tasks(ctx)
	return append(all, m.functions.Boxes()...), err
}

func (m *machine) boxesRun(ctx context.Context) bool {
	tasks, err := tasksOf(ctx, m)
	return err == nil && slices.ContainsFunc(tasks, func(t fleet.Status) bool { return t.State != fleet.Stopped })
}

// callsWait reports whether the store has calls that a cleanup may have to finish. It also returns
// true if the store fails. Calls of native servers count too: a program that was killed may not have
// set the alarm of such a call.
func callsWait(ctx context.Context, store storage.Store) bool {
	due, err := store.Due(ctx)
	return err != nil || len(due) > 0
}
