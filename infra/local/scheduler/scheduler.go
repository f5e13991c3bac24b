// Package scheduler sends events at a given time, even if this program is restarted meanwhile.
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
	// Send begins to handle an event. It closes done when the event is handled, or was given up.
	Send   func(payload []byte) (done <-chan struct{}, err error)
	Logger *slog.Logger // may be nil
}

// API keeps schedules, each of which sends one event. A schedule is stored in a file until its
// event is handled or given up, so it survives the end of this program. A schedule that was due
// while no program ran is due at the next start.
type API struct {
	cfg Config

	mu    sync.Mutex
	now   func() time.Time // returns the current time; tests replace it
	runs  bool             // Start was called, and Stop was not
	ended bool             // Stop was called
	kept  map[string]*oneTime
	timer *time.Timer    // nil while no schedule waits
	work  sync.WaitGroup // events that are being handled
}

// oneTime is a schedule. Its exported fields are the content of its file, in the form of
// EventBridge.
type oneTime struct {
	ScheduleExpression string
	Target             struct{ Input string }

	at   time.Time
	sent bool // Config.Send was called
}

// lookEvery is the longest timer that the API uses. While the machine is suspended, timers stand
// still; so the API looks at the clock at least this often while a schedule waits.
const lookEvery = 30 * time.Second

const atForm = "at(2006-01-02T15:04:05)"

// New reads the schedules in a folder. It sends no event before [API.Start]. The caller must call
// [API.Close].
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
			s.at, _ = time.Parse(atForm, s.ScheduleExpression) // on an error at stays zero
		}
		if s.at.IsZero() {
			cfg.Logger.Warn("a schedule cannot be read, so it is ignored", "file", file)
			continue
		}
		a.kept[strings.TrimSuffix(filepath.Base(file), ".json")] = s
	}
	return a, nil
}

// Start begins to send events, at once for those that are due.
func (a *API) Start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs = !a.ended
	a.arm()
}

// arm sets the timer for the next due schedule. Call it with mu held.
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

// fire sends the event of a schedule. It removes the schedule when the event is handled or was
// given up.
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

// forget removes a schedule and its file. Call it with mu held.
func (a *API) forget(name string) {
	delete(a.kept, name)
	a.arm()
	if err := os.Remove(a.file(name)); err != nil {
		a.cfg.Logger.Warn("a schedule cannot be deleted and will come again", "error", err)
	}
}

func (a *API) file(name string) string { return filepath.Join(a.cfg.Folder, name+".json") }

// Stop makes the API send no more events, and remove no more schedules. A schedule whose event is not
// handled yet stays for the next start.
func (a *API) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs, a.ended = false, true
	a.arm()
}

// Close calls Stop. Then it waits for the events that are being handled, or until ctx ends.
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

// Create stores a schedule that sends event, which is JSON. The time at which it is due is rounded up
// to a whole second. If a schedule with this name exists, Create changes nothing and created is
// false.
func (a *API) Create(name string, due time.Time, event string) (created bool, err error) {
	s := &oneTime{at: due.Add(time.Second - 1).Truncate(time.Second)}
	s.ScheduleExpression, s.Target.Input = s.at.UTC().Format(atForm), event
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.ended:
		return false, errors.New("the schedules are closed")
	case a.kept[name] != nil:
		return false, nil
	}
	raw, err := json.Marshal(s)
	if err == nil {
		err = durable.WriteFile(a.file(name), raw, 0o600)
	}
	if err != nil {
		return false, err
	}
	a.kept[name] = s
	a.arm()
	return true, nil
}

// Delete removes a schedule. The result found is false if there is none with this name.
func (a *API) Delete(name string) (found bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept[name] == nil {
		return false
	}
	a.forget(name)
	return true
}
