package scheduler

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/backend/native/eventbridge"
)

// direct is an HTTP transport that calls a handler.
type direct struct{ h http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.h.ServeHTTP(w, r)
	return w.Result(), nil
}

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

func (s *sent) send(function string, payload []byte) (<-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events[function+" "+string(payload)] = time.Now()
	return s.hold, nil
}

func (s *sent) all() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.events)
}

func newSchedules(t *testing.T, folder string, s *sent) (api *API, client *eventbridge.Scheduler) {
	t.Helper()
	api, err := New(Config{Folder: folder, Functions: []string{"http"}, Send: s.send})
	if err != nil {
		t.Fatal(err)
	}
	api.Start()
	return api, eventbridge.New(eventbridge.Config{
		Service: awscall.Service{Endpoint: "http://local", Client: &http.Client{Transport: direct{api}}}, Group: Group, Target: awsapi.FunctionARN("http"), Role: "arn:aws:iam::000000000000:role/local",
	})
}

func closeSchedules(t *testing.T, api *API) {
	t.Helper()
	if err := api.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

func alarmEventOf(t *testing.T, a native.Alarm) string {
	t.Helper()
	event, err := native.AlarmEvent(a)
	if err != nil {
		t.Fatal(err)
	}
	return "http " + string(event)
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
				if err := client.Schedule(t.Context(), a); err != nil {
					t.Fatal(err)
				}
			}
		}
		begun := time.Now()
		time.Sleep(72 * time.Hour) // virtual
		late := map[string]time.Duration{}
		for event, at := range s.all() {
			late[event] = at.Sub(begun)
		}
		// Times are rounded up to whole seconds, so no alarm comes early.
		want := map[string]time.Duration{alarmEventOf(t, a): 36*time.Hour + time.Second, alarmEventOf(t, soon): 2 * time.Second}
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
				if err := api.Create(name, "http", at, `"`+name+`"`); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !api.Delete("gone") || api.Delete("gone") {
			t.Error("gone was not there once")
		}
		synctest.Wait()
		closeSchedules(t, api)
		if err := api.Create("late", "http", begun, "{}"); err == nil {
			t.Error("a schedule was taken that is never sent")
		}
		api, _ = newSchedules(t, folder, s) // another program on the same folder
		defer closeSchedules(t, api)
		time.Sleep(time.Hour)
		late := map[string]time.Duration{}
		for event, at := range s.all() {
			late[event] = at.Sub(begun)
		}
		if diff := cmp.Diff(map[string]time.Duration{`http "passed"`: 0, `http "later"`: time.Minute + time.Second}, late); diff != "" {
			t.Error(diff)
		}
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
			if err := client.Schedule(t.Context(), a); err != nil {
				t.Fatal(err)
			}
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
		if err := client.Schedule(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := client.Cancel(t.Context(), a); err != nil {
				t.Fatal(err)
			}
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
			if err := client.Schedule(t.Context(), a); err != nil {
				t.Fatal(err)
			}
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
		if err := client.Schedule(t.Context(), a); err != nil {
			t.Fatal(err)
		}
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
		if err := client.Schedule(t.Context(), native.Alarm{Session: "s1", Name: "missed", At: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		closeSchedules(t, api)
		time.Sleep(2 * time.Hour) // virtual
		again, err := New(Config{Folder: folder, Functions: []string{"http"}, Send: s.send})
		if err != nil {
			t.Fatal(err)
		}
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

func TestWhatEventBridgeWouldRefuseIsRefused(t *testing.T) {
	api, _ := newSchedules(t, t.TempDir(), newSent())
	defer closeSchedules(t, api)
	good := `{"ClientToken":"t","GroupName":"dormouse","ScheduleExpression":"at(2999-01-02T03:04:05)","ScheduleExpressionTimezone":"UTC",
		"FlexibleTimeWindow":{"Mode":"OFF"},"ActionAfterCompletion":"DELETE","Target":{"Arn":"` + awsapi.FunctionARN("http") + `","RoleArn":"r","Input":"{}"}}`
	for name, c := range map[string]struct {
		method, path, old, new, kind string
		status                       int
	}{
		"all is right":        {path: "/schedules/a-b_c.1", status: 200},
		"the same again":      {path: "/schedules/a-b_c.1", status: 200},
		"another of the name": {path: "/schedules/a-b_c.1", old: `"t"`, new: `"u"`, status: 409, kind: "ConflictException"},
		"a name too long":     {path: "/schedules/" + strings.Repeat("n", 65), status: 400, kind: "ValidationException"},
		"a name with a space": {path: "/schedules/a%20b", status: 400, kind: "ValidationException"},
		"a zone in the time":  {path: "/schedules/z", old: ":05)", new: ":05Z)", status: 400, kind: "ValidationException"},
		"no time zone":        {path: "/schedules/z", old: `"UTC"`, new: `""`, status: 400, kind: "ValidationException"},
		"the past":            {path: "/schedules/z", old: "2999", new: "1999", status: 400, kind: "ValidationException"},
		"another group":       {path: "/schedules/z", old: `"dormouse"`, new: `"other"`, status: 404, kind: "ResourceNotFoundException"},
		"another function":    {path: "/schedules/z", old: ":http", new: ":other", status: 400, kind: "ValidationException"},
		"no role":             {path: "/schedules/z", old: `"r"`, new: `""`, status: 400, kind: "ValidationException"},
		"input that is none":  {path: "/schedules/z", old: `"{}"`, new: `"{"`, status: 400, kind: "ValidationException"},
		"a long token":        {path: "/schedules/z", old: `"t"`, new: `"` + strings.Repeat("t", 65) + `"`, status: 400, kind: "ValidationException"},
		"a window":            {path: "/schedules/z", old: "OFF", new: "FLEXIBLE", status: 400, kind: "ValidationException"},
		"deleting nothing":    {method: "DELETE", path: "/schedules/none?groupName=dormouse", status: 404, kind: "ResourceNotFoundException"},
		"no such operation":   {method: "PUT", path: "/schedules/z", status: 404, kind: "UnknownOperationException"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.method == "" {
				c.method = http.MethodPost
				// The first request leaves a schedule that can conflict with another.
				api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/schedules/a-b_c.1", strings.NewReader(good)))
			}
			w := httptest.NewRecorder()
			api.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(replaced(good, c.old, c.new))))
			if got := w.Header().Get("X-Amzn-ErrorType"); w.Code != c.status || got != c.kind {
				t.Errorf("status %d, %q, want %d, %q: %s", w.Code, got, c.status, c.kind, w.Body)
			}
		})
	}
}

// replaced returns text with the first old replaced by with. An empty old changes nothing.
func replaced(text, old, with string) string {
	if old == "" {
		return text
	}
	return strings.Replace(text, old, with, 1)
}
