package scheduler

import (
	"context"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// sent holds the events that an API has sent, with their times.
type sent struct {
	mu     sync.Mutex
	events map[string]time.Time
	hold   chan struct{} // closed when they have been handled
}

func newSent() *sent {
	s := &sent{events: map[string]time.Time{}, hold: make(chan struct{})}
	close(s.hold)
	return s
}

func (s *sent) send(payload []byte) (<-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events[string(payload)] = time.Now()
	return s.hold, nil
}

func (s *sent) all() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.events)
}

func newSchedules(t *testing.T, folder string, s *sent) *API {
	t.Helper()
	api, err := New(Config{Folder: folder, Send: s.send})
	commontest.OK(t, err)
	return api
}

func startSchedules(t *testing.T, folder string, s *sent) *API {
	t.Helper()
	api := newSchedules(t, folder, s)
	api.Start()
	return api
}

// set stores a schedule whose event is its name.
func set(t *testing.T, api *API, name string, at time.Time) {
	t.Helper()
	_, err := api.Create(name, at, name)
	commontest.OK(t, err)
}

func closeSchedules(t *testing.T, api *API) {
	t.Helper()
	commontest.Check(t, api.Close(context.WithoutCancel(t.Context())))
}

// Times are rounded up to whole seconds, so no event comes early. What is deleted does not come.
func TestAnEventIsSentOnceWhenItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, begun := newSent(), time.Now()
		api := startSchedules(t, t.TempDir(), s)
		for name, at := range map[string]time.Time{
			"passed": begun.Add(-time.Hour), "later": begun.Add(36*time.Hour + time.Millisecond), "gone": begun.Add(time.Minute),
		} {
			for range 2 { // a repeat is accepted
				set(t, api, name, at)
			}
		}
		if !api.Delete("gone") || api.Delete("gone") {
			t.Error("gone was not there once")
		}
		time.Sleep(72 * time.Hour) // virtual
		commontest.Same(t, map[string]time.Time{"passed": begun, "later": begun.Add(36*time.Hour + time.Second)}, s.all())
		commontest.EqualIn(t, "schedules are left", 0, api.Len())
		closeSchedules(t, api)
		if _, err := api.Create("late", begun, "{}"); err == nil {
			t.Error("a schedule was taken that is never sent")
		}
	})
}

// While a machine sleeps, its clock goes on and its timers stand still.
func TestAnAlarmComesSoonAfterTheMachineSlept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSent()
		api := startSchedules(t, t.TempDir(), s)
		defer closeSchedules(t, api)
		var slept time.Duration
		api.now = func() time.Time { return time.Now().Add(slept) }
		set(t, api, "passed", time.Now().Add(10*time.Hour))
		set(t, api, "ahead", time.Now().Add(20*time.Hour))
		time.Sleep(time.Hour) // virtual
		api.mu.Lock()
		slept = 12 * time.Hour
		api.mu.Unlock()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := s.all(); len(got) != 1 || api.Len() != 1 {
			t.Errorf("half a minute after the machine woke, %d events have come and %d schedules are left; want 1 and 1", len(got), api.Len())
		}
		time.Sleep(7 * time.Hour)
		if got := s.all(); len(got) != 2 || api.Len() != 0 {
			t.Errorf("in the end %d events have come and %d schedules are left", len(got), api.Len())
		}
	})
}

func TestAlarmsOutliveTheMachineAndComeLateRatherThanNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder, s := t.TempDir(), newSent()
		api, ahead := startSchedules(t, folder, s), time.Now().Add(24*time.Hour)
		set(t, api, "missed", time.Now().Add(time.Hour))
		set(t, api, "ahead", ahead)
		closeSchedules(t, api)
		time.Sleep(6 * time.Hour) // virtual
		next := newSchedules(t, folder, s)
		time.Sleep(6 * time.Hour)
		if len(s.all()) != 0 {
			t.Fatalf("sent by one that is closed, or not started: %v", s.all())
		}
		back := time.Now()
		next.Start()
		time.Sleep(48 * time.Hour) // virtual
		commontest.Same(t, map[string]time.Time{"missed": back, "ahead": ahead}, s.all())
		commontest.EqualIn(t, "schedules are left", 0, next.Len())
		closeSchedules(t, next)
		if next.Start(); next.runs {
			t.Error("it runs after its end")
		}
	})
}
