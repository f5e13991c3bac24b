package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

// sweepEvery is the schedule's period while boxes run.
const sweepEvery = time.Minute

// startSweep sweeps once, for what an earlier run left behind, and then on a
// schedule. A schedule that wakes a function on an idle machine would break the
// promise that nothing runs, so it skips its turn while no box does: a box record
// that is not asleep has a task.
func (m *machine) startSweep(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(m.data, StoreFile)); err == nil {
		m.sweep(scheduleEvent())
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
					m.sweep(scheduleEvent())
				}
			}
		}
	}()
	return nil
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

// sweepTries is how often an event is handled until it succeeds: once and two
// retries, as Lambda does for what is invoked asynchronously.
const sweepTries = 3

// sweep invokes the sweep function, as EventBridge does.
func (m *machine) sweep(e events.CloudWatchEvent) {
	payload, err := json.Marshal(e)
	if err != nil {
		m.log.Error("an event cannot be encoded", "error", err)
		return
	}
	for range sweepTries {
		if err = m.sweepOnce(payload); err == nil {
			return
		}
	}
	m.log.Warn("a sweep failed; the next one will try again", "detail_type", e.DetailType, "error", err)
}

func (m *machine) sweepOnce(payload []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	inv, err := m.pool.Invoke(ctx, "sweep", payload)
	if err != nil {
		return err
	}
	defer func() { _ = inv.Body.Close() }()
	if inv.Failed != nil {
		return inv.Failed
	}
	_, err = io.Copy(io.Discard, inv.Body)
	return err
}

func scheduleEvent() events.CloudWatchEvent {
	return cloudWatchEvent("Scheduled Event", json.RawMessage("{}"))
}

func taskEvent(t fleet.Status) events.CloudWatchEvent {
	detail, err := json.Marshal(t)
	if err != nil { // strings, numbers and times
		panic("local: a task status that cannot be encoded: " + err.Error())
	}
	return cloudWatchEvent("Dormouse Task Stopped", detail)
}

func cloudWatchEvent(kind string, detail json.RawMessage) events.CloudWatchEvent {
	return events.CloudWatchEvent{
		Version: "0", ID: uuid.NewString(), DetailType: kind, Source: "dormouse.local", AccountID: "000000000000",
		Time: time.Now().UTC().Truncate(time.Second), Region: "local", Resources: []string{}, Detail: detail,
	}
}

func newSecret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
