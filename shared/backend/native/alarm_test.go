package native_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// agent is a session of a server that handles alarms.
type agent struct {
	legacy
	handle func(ctx context.Context, s native.Session, a native.Alarm) error

	found native.Session // as the last message found it
	rung  []string
}

// withAlarms runs a test in virtual time.
func withAlarms(t *testing.T, test func(t *testing.T, a *agent)) {
	inTime(t, func(t *testing.T, w *world) {
		a := &agent{legacy: legacy{world: w}, handle: func(context.Context, native.Session, native.Alarm) error { return nil }}
		w.hosted.Make = func(_ context.Context, s native.Session) (*mcp.Server, error) {
			s.OnAlarm(func(ctx context.Context, alarm native.Alarm) error {
				a.mu.Lock()
				a.rung = append(a.rung, alarm.Name+" "+string(alarm.Payload))
				a.mu.Unlock()
				return a.handle(ctx, s, alarm)
			})
			a.mu.Lock()
			defer a.mu.Unlock()
			a.found = s
			return mcp.NewServer(&mcp.Implementation{Name: "agent"}, s.Options()), nil
		}
		a.legacy = w.legacy(`{}`)
		test(t, a)
	})
}

// session returns the session in the state in which a message finds it.
func (a *agent) session() native.Session {
	a.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	return a.found
}

func (a *agent) wakeAt(name string, in time.Duration, payload any) native.Alarm {
	a.t.Helper()
	before := maps.Clone(a.alarms)
	commontest.OK(a.t, a.session().WakeAt(a.t.Context(), name, time.Now().Add(in), payload))
	for id, alarm := range a.alarms {
		if _, old := before[id]; !old {
			return alarm
		}
	}
	a.t.Fatal("WakeAt has scheduled nothing")
	return native.Alarm{}
}

// rings delivers an alarm by the event that a scheduler sends.
func (a *agent) rings(alarm native.Alarm) error {
	a.t.Helper()
	event, err := native.AlarmEvent(alarm)
	commontest.OK(a.t, err)
	alarm, ok := native.ReadAlarm(event)
	commontest.EqualIn(a.t, string(event)+" is an alarm", true, ok)
	b, _ := a.backend()
	return b.Handle(a.t.Context(), alarm)
}

func (a *agent) wantRung(want ...string) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	commontest.SameIn(a.t, "rung", want, a.rung)
}

func TestAnAlarmThatComesTwiceIsHandledOnce(t *testing.T) {
	withAlarms(t, func(t *testing.T, a *agent) {
		alarm := a.wakeAt("report", time.Minute, map[string]int{"n": 1})
		time.Sleep(time.Minute) // virtual
		a.handle = func(ctx context.Context, _ native.Session, _ native.Alarm) error {
			return storage.Rest(ctx, time.Minute)
		}
		var both sync.WaitGroup
		errs := make(chan error, 2)
		for range 2 {
			both.Go(func() { errs <- a.rings(alarm) })
		}
		both.Wait()
		if one, two := <-errs, <-errs; one != nil && two != nil {
			t.Errorf("errors %v and %v, want one at most", one, two)
		}
		commontest.Check(t, a.rings(alarm)) // the alarm that found it held comes again
		a.wantRung(`report {"n":1}`)
	})
}

func TestAnAlarmOfTheSameNameIsReplaced(t *testing.T) {
	withAlarms(t, func(t *testing.T, a *agent) {
		first := a.wakeAt("report", time.Minute, "first")
		second := a.wakeAt("report", time.Hour, "second")
		if _, ok := a.alarms[first.ID()]; ok || len(a.alarms) != 1 {
			t.Errorf("scheduled is %v, want the second only", a.alarms)
		}
		time.Sleep(time.Minute) // virtual
		commontest.Check(t, a.rings(first))
		a.wantRung()
		time.Sleep(time.Hour) // virtual
		commontest.Check(t, a.rings(second))
		a.wantRung(`report "second"`)
	})
}

func TestAnAlarmWhoseFunctionDiedBeforeItWasScheduledIsFoundByTheOneItReplaced(t *testing.T) {
	withAlarms(t, func(t *testing.T, a *agent) {
		first := a.wakeAt("report", time.Minute, "first")
		a.deaf = errors.New("the function has died")
		if err := a.session().WakeAt(t.Context(), "report", time.Now().Add(time.Hour), "second"); !errors.Is(err, a.deaf) {
			t.Fatalf("WakeAt returned %v", err)
		}
		a.deaf = nil
		time.Sleep(time.Minute) // virtual
		clear(a.alarms)
		commontest.OK(t, a.rings(first))
		time.Sleep(time.Hour) // virtual
		for _, alarm := range a.due() {
			commontest.Check(t, a.rings(alarm))
		}
		a.wantRung(`report "second"`)
	})
}

func TestAHandlerThatFailsIsCalledThreeTimes(t *testing.T) {
	withAlarms(t, func(t *testing.T, a *agent) {
		alarm := a.wakeAt("report", 0, nil)
		a.handle = func(context.Context, native.Session, native.Alarm) error {
			panic("broken")
		}
		for try := range 5 {
			commontest.EqualIn(t, fmt.Sprintf("try %d fails", try), try < 2, a.rings(alarm) != nil)
		}
		a.wantRung("report null", "report null", "report null")
	})
}

func TestAHandlerWhoseFunctionDiedIsCalledAgainWhenItsLeaseHasRunOut(t *testing.T) {
	withAlarms(t, func(t *testing.T, a *agent) {
		alarm := a.wakeAt("report", 0, nil)
		store := a.open()
		a.open = func() storage.Store { return mortal(store, 2, false) } // behind the write of its lease
		begun := time.Now()
		_ = a.rings(alarm) // it is dead
		a.open = func() storage.Store { return store }
		commontest.Check(t, a.rings(alarm))
		commontest.EqualIn(t, "called again after", 30*time.Second, time.Since(begun))
		a.wantRung("report null", "report null")
	})
}

func TestAHandlerMaySetItsAlarmAnew(t *testing.T) {
	withAlarms(t, func(t *testing.T, a *agent) {
		a.handle = func(ctx context.Context, s native.Session, alarm native.Alarm) error {
			return s.WakeAt(ctx, alarm.Name, time.Now().Add(time.Hour), "again")
		}
		first := a.wakeAt("tick", 0, "first")
		clear(a.alarms)
		commontest.OK(t, a.rings(first))
		time.Sleep(time.Hour) // virtual
		for _, alarm := range a.due() {
			commontest.OK(t, a.rings(alarm))
		}
		a.wantRung(`tick "first"`, `tick "again"`)
	})
}

func TestAnAlarmIsNotHandled(t *testing.T) {
	for name, tt := range map[string]struct {
		leave func(t *testing.T, a *agent)
		again int // alarms that are set behind it
	}{
		"that is taken back": {func(t *testing.T, a *agent) {
			for range 2 {
				commontest.OK(t, a.session().CancelWake(t.Context(), "report"))
			}
			time.Sleep(time.Minute)
		}, 0},
		"that comes too early": {func(*testing.T, *agent) {}, 1},
		"of a session that has ended": {func(t *testing.T, a *agent) {
			s, _, err := a.open().Load(t.Context(), storage.ID(a.id), "")
			commontest.OK(t, err)
			s.State = storage.Ended
			commontest.OK(t, a.open().Save(t.Context(), s))
			time.Sleep(time.Minute)
		}, 0},
		"of a session that has expired": {func(*testing.T, *agent) { time.Sleep(60 * 24 * time.Hour) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			withAlarms(t, func(t *testing.T, a *agent) {
				alarm := a.wakeAt("report", time.Minute, nil)
				tt.leave(t, a)
				clear(a.alarms) // it rings
				commontest.Check(t, a.rings(alarm))
				commontest.EqualIn(t, "scheduled", tt.again, len(a.alarms))
				a.wantRung()
			})
		})
	}
}

func TestAnEventOfAPIGatewayIsNoAlarm(t *testing.T) {
	for _, event := range []string{
		`{"httpMethod":"POST","path":"/x/mcp","body":"{\"dormouseAlarm\":{\"session\":\"s1\"}}","headers":{"dormouseAlarm":"{}"},"queryStringParameters":{"dormouseAlarm":"1"}}`,
		`{"dormouseAlarm":null}`, `{"dormouseAlarm":{}}`, `{"dormouseAlarm":7}`, `[]`, ``,
	} {
		if a, ok := native.ReadAlarm([]byte(event)); ok {
			t.Errorf("%s is an alarm: %+v", event, a)
		}
	}
}
