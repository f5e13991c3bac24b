// Package scheduler sends events once at a later time, even if this program is restarted
// meanwhile.
package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/shared/core/durable"
)

// Config describes an [API]. All fields but Logger are required.
type Config struct {
	Folder string // folder of the schedules; New creates it if missing
	// Send has an event handled. It closes done when that is over, or given up.
	Send   func(payload []byte) (done <-chan struct{}, err error)
	Logger *slog.Logger // may be nil
}

// API keeps schedules that send an event once. A schedule is a file until its event is
// handled or given up. So it outlives this program. If
// a schedule was due in the meantime, it is due at once.
type API struct {
	cfg Config

	mu    sync.Mutex
	now   func() time.Time // the clock of the machine
	runs  bool             // between Start and Stop
	ended bool             // after Stop
	kept  map[string]*oneTime
	timer *time.Timer    // nil while no schedule waits
	work  sync.WaitGroup // events in work
}

// oneTime is a schedule in the form of its file, which is EventBridge's.
type oneTime struct {
	ScheduleExpression string
	Target             struct{ Input string }

	at   time.Time
	sent bool // the event of the schedule is being delivered
}

// lookEvery is how often the API looks at the clock while a schedule waits. Timers stand
// still while the machine sleeps, so the API uses no longer timer.
const lookEvery = 30 * time.Second

const atForm = "at(2006-01-02T15:04:05)"

// New reads the schedules of a folder. It sends no event before [API.Start], and the
// API must be closed.
func New(cfg Config) (*API, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	a := &API{cfg: cfg, now: time.Now, kept: map[string]*oneTime{}}
	if err := os.MkdirAll(cfg.Folder, 0o700); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(cfg.Folder, "*.json"))
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		s := &oneTime{}
		if json.Unmarshal(raw, s) == nil {
			s.at, _ = time.Parse(atForm, s.ScheduleExpression) // zero if it cannot be read
		}
		if s.at.IsZero() {
			cfg.Logger.Warn("a schedule cannot be read, so it is ignored", "file", file)
			continue
		}
		a.kept[strings.TrimSuffix(filepath.Base(file), ".json")] = s
	}
	return a, nil
}

// Start begins to send events. It sends those of due schedules at once.
func (a *API) Start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs = !a.ended
	a.arm()
}

// arm sets the timer for the next due schedule. Called with mu held.
func (a *API) arm() {
	wait, waits := lookEvery, false
	for _, s := range a.kept {
		if !s.sent {
			wait, waits = min(wait, s.at.Sub(a.now())), true
		}
	}
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	if waits && a.runs {
		a.timer = time.AfterFunc(wait, a.look)
	}
}

// look sends the events of all due schedules.
func (a *API) look() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.runs {
		return
	}
	for name, s := range a.kept {
		if !s.sent && !s.at.After(a.now()) {
			s.sent = true
			a.work.Go(func() { a.fire(name, s) })
		}
	}
	a.arm()
}

// fire sends the event of a schedule, and removes the schedule when the event is handled
// or given up.
func (a *API) fire(name string, s *oneTime) {
	done, err := a.cfg.Send([]byte(s.Target.Input))
	if err != nil {
		return // the receiver is closing; the file stays until the next Start
	}
	<-done
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ended && a.kept[name] == s {
		a.forget(name)
	}
}

// forget removes a schedule. Called with mu held.
func (a *API) forget(name string) {
	delete(a.kept, name)
	a.arm()
	if err := os.Remove(a.file(name)); err != nil {
		a.cfg.Logger.Warn("a schedule cannot be deleted and will come again", "error", err)
	}
}

func (a *API) file(name string) string { return filepath.Join(a.cfg.Folder, name+".json") }

// Stop ends the sending of events and the removal of schedules. A schedule whose event is
// not handled by now stays for the next Start.
func (a *API) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs, a.ended = false, true
	a.arm()
}

// Close calls Stop, and waits for the events that are being handled until ctx ends.
func (a *API) Close(ctx context.Context) error {
	a.Stop()
	if err := awsapi.Wait(ctx, &a.work); err != nil {
		return fmt.Errorf("close the schedules: %w", err)
	}
	return nil
}

// Len returns the number of schedules.
func (a *API) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.kept)
}

// write writes the file of a schedule in one step.
func (a *API) write(name string, s *oneTime) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return durable.WriteFile(a.file(name), raw, 0o600)
}

// Create stores a schedule that sends an event, which is JSON. The
// schedule is due in the first whole second at or after at, or at once if that has
// passed. If one with its name exists, that one stays unchanged and created is false.
func (a *API) Create(name string, at time.Time, event string) (created bool, err error) {
	s := &oneTime{at: at.Add(time.Second - 1).Truncate(time.Second)}
	s.ScheduleExpression, s.Target.Input = s.at.UTC().Format(atForm), event
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.ended:
		return false, errors.New("the schedules are closed")
	case a.kept[name] != nil:
		return false, nil
	}
	if err := a.write(name, s); err != nil {
		return false, err
	}
	a.kept[name] = s
	a.arm()
	return true, nil
}

// Delete removes a schedule. found is false if there is none.
func (a *API) Delete(name string) (found bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept[name] == nil {
		return false
	}
	a.forget(name)
	return true
}
