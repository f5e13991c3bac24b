package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strings"
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
	if !m.storeIsNew() {
		select {
		case <-m.sweep(scheduleEvent()):
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
					m.sweep(scheduleEvent())
				}
			}
		}
	}()
	return nil
}

// storeIsNew says whether nobody can have left anything behind.
func (m *machine) storeIsNew() bool {
	path, ok := strings.CutPrefix(m.store, sqlite)
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

// sweep invokes the sweep function, as EventBridge does. The channel is closed when
// that has come to its end.
func (m *machine) sweep(e events.CloudWatchEvent) <-chan struct{} {
	payload, err := json.Marshal(e)
	if err != nil { // its only raw part was encoded by taskEvent
		panic("local: an event that cannot be encoded: " + err.Error())
	}
	done, err := m.lambda.Send("sweep", payload)
	if err != nil {
		m.log.Warn("a sweep was not begun; the next one will try again", "detail_type", e.DetailType, "error", err)
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return done
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
