package scheduler

import (
	"context"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// client sets alarms as a machine does.
type client struct{ api *API }

func (c client) Schedule(_ context.Context, a native.Alarm) error {
	event, err := native.AlarmEvent(a)
	if err == nil {
		_, err = c.api.Create(a.ID(), a.At, string(event))
	}
	return err
}

func (c client) cancel(a native.Alarm) { c.api.Delete(a.ID()) }

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

func newSchedules(t *testing.T, folder string, s *sent) (*API, client) {
	t.Helper()
	api, err := New(Config{Folder: folder, Send: s.send})
	commontest.OK(t, err)
	api.Start()
	return api, client{api}
}

func closeSchedules(t *testing.T, api *API) {
	t.Helper()
	commontest.Check(t, api.Close(context.WithoutCancel(t.Context())))
}

func alarmEventOf(t *testing.T, a native.Alarm) string {
	t.Helper()
	event, err := native.AlarmEvent(a)
	commontest.OK(t, err)
	return string(event)
}

func TestAnAlarmInvokesItsFunctionOnceWhenItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSent()
		api, client := newSchedules(t, t.TempDir(), s)
		defer closeSchedules(t, api)
		a := native.Alarm{Session: "s1", Tenant: "acme", Server: "job", Name: "done", At: time.Now().Add(36*time.Hour + time.Millisecond)}
		soon := native.Alarm{Session: "s1", Name: "soon", At: time.Now().Add(-time.Hour)}
		for range 2 { // a repeat is accepted
			for _, a := range []native.Alarm{a, soon} {
				commontest.OK(t, client.Schedule(t.Context(), a))
			}
		}
		begun := time.Now()
		time.Sleep(72 * time.Hour) // virtual
		late := map[string]time.Duration{}
		for event, at := range s.all() {
			late[event] = at.Sub(begun)
		}
		// Times are rounded up to whole seconds, so no alarm comes early.
		want := map[string]time.Duration{alarmEventOf(t, a): 36*time.Hour + time.Second, alarmEventOf(t, soon): 0}
		if diff := cmp.Diff(want, late); diff != "" || api.Len() != 0 {
			t.Errorf("%d are left, and what came when:\n%s", api.Len(), diff)
		}
	})
}

// This program can set a schedule without an HTTP request.
func TestAScheduleIsSetAndForgottenInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, folder := newSent(), t.TempDir()
		api, _ := newSchedules(t, folder, s)
		begun := time.Now()
		for name, at := range map[string]time.Time{
			"passed": begun.Add(-time.Hour), "later": begun.Add(time.Minute + time.Millisecond), "gone": begun.Add(time.Minute),
		} {
			for range 2 { // a repeat is accepted
				if _, err := api.Create(name, at, `"`+name+`"`); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !api.Delete("gone") || api.Delete("gone") {
			t.Error("gone was not there once")
		}
		synctest.Wait()
		closeSchedules(t, api)
		if _, err := api.Create("late", begun, "{}"); err == nil {
			t.Error("a schedule was taken that is never sent")
		}
		api, _ = newSchedules(t, folder, s) // another program on the same folder
		defer closeSchedules(t, api)
		time.Sleep(time.Hour)
		late := map[string]time.Duration{}
		for event, at := range s.all() {
			late[event] = at.Sub(begun)
		}
		commontest.Same(t, map[string]time.Duration{`"passed"`: 0, `"later"`: time.Minute + time.Second}, late)
	})
}

// While a machine sleeps, its clock goes on and its timers stand still.
func TestAnAlarmComesSoonAfterTheMachineSlept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSent()
		api, client := newSchedules(t, t.TempDir(), s)
		defer closeSchedules(t, api)
		var slept time.Duration
		api.now = func() time.Time { return time.Now().Add(slept) }
		for _, a := range []native.Alarm{
			{Session: "s1", Name: "passed", At: time.Now().Add(10 * time.Hour)},
			{Session: "s1", Name: "ahead", At: time.Now().Add(20 * time.Hour)},
		} {
			commontest.OK(t, client.Schedule(t.Context(), a))
		}
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

func TestAnAlarmThatIsCancelledDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSent()
		api, client := newSchedules(t, t.TempDir(), s)
		defer closeSchedules(t, api)
		a := native.Alarm{Session: "s1", Name: "n", At: time.Now().Add(time.Hour)}
		commontest.OK(t, client.Schedule(t.Context(), a))
		for range 2 {
			client.cancel(a)
		}
		time.Sleep(2 * time.Hour) // virtual
		if len(s.all()) != 0 {
			t.Errorf("it came: %v", s.all())
		}
	})
}

func TestAlarmsOutliveTheMachineAndComeLateRatherThanNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder, s := t.TempDir(), newSent()
		api, client := newSchedules(t, folder, s)
		missed := native.Alarm{Session: "s1", Name: "missed", At: time.Now().Add(time.Hour)}
		ahead := native.Alarm{Session: "s1", Name: "ahead", At: time.Now().Add(24 * time.Hour)}
		for _, a := range []native.Alarm{missed, ahead} {
			commontest.OK(t, client.Schedule(t.Context(), a))
		}
		closeSchedules(t, api)
		time.Sleep(12 * time.Hour) // virtual
		if len(s.all()) != 0 {
			t.Fatalf("a closed one sends: %v", s.all())
		}
		back := time.Now()
		api, _ = newSchedules(t, folder, s)
		time.Sleep(48 * time.Hour) // virtual
		want := map[string]time.Time{alarmEventOf(t, missed): back, alarmEventOf(t, ahead): ahead.At}
		if diff := cmp.Diff(want, s.all()); diff != "" || api.Len() != 0 {
			t.Errorf("%d are left, and what came when:\n%s", api.Len(), diff)
		}
		closeSchedules(t, api)
	})
}

func TestAnAlarmThatWasNotHandledComesAgainAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder, s := t.TempDir(), newSent()
		s.hold = make(chan struct{}) // the function does not end
		api, client := newSchedules(t, folder, s)
		a := native.Alarm{Session: "s1", Name: "n", At: time.Now().Add(time.Minute)}
		commontest.OK(t, client.Schedule(t.Context(), a))
		time.Sleep(time.Hour) // virtual
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := api.Close(ctx); err == nil {
			t.Error("Close returned before the event was handled")
		}
		close(s.hold) // given up
		synctest.Wait()
		again := newSent()
		api, _ = newSchedules(t, folder, again)
		time.Sleep(time.Minute) // virtual
		if len(again.all()) != 1 {
			t.Errorf("%d events after the restart, want the one that was not handled", len(again.all()))
		}
		closeSchedules(t, api)
	})
}

func TestNoAlarmComesBeforeTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder, s := t.TempDir(), newSent()
		api, client := newSchedules(t, folder, s)
		commontest.OK(t, client.Schedule(t.Context(), native.Alarm{Session: "s1", Name: "missed", At: time.Now().Add(time.Hour)}))
		closeSchedules(t, api)
		time.Sleep(2 * time.Hour) // virtual
		again, err := New(Config{Folder: folder, Send: s.send})
		commontest.OK(t, err)
		time.Sleep(time.Hour)
		if len(s.all()) != 0 {
			t.Errorf("it came: %v", s.all())
		}
		again.Start()
		synctest.Wait()
		if len(s.all()) != 1 {
			t.Error("it does not come at the start")
		}
		closeSchedules(t, again)
		again.Start()
		if again.runs {
			t.Error("it runs after its end")
		}
	})
}
