package native

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// agent is a session of a server with alarms: a store, a scheduler, and the author's
// handler. Each step has a new Backend.
type agent struct {
	t     *testing.T
	store storage.Store
	id    storage.ID

	mu     sync.Mutex
	set    map[string]Alarm // with the scheduler
	handle func(ctx context.Context, s Session, a Alarm) error
	rung   []string
}

func newAgent(t *testing.T, store storage.Store) *agent {
	a := &agent{t: t, store: store, id: "s1", set: map[string]Alarm{}}
	commontest.OK(t, store.Create(t.Context(), aSession(a.id)))
	return a
}

func (a *agent) Schedule(_ context.Context, alarm Alarm) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.set[alarm.ID()] = alarm
	return nil
}

func (a *agent) Cancel(_ context.Context, alarm Alarm) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.set, alarm.ID())
	return nil
}

func (a *agent) backend() *Backend {
	return NewBackend(Config{Store: a.store, Schedule: a, Servers: func(string) (Hosted, bool) { return Hosted{Make: a.make}, true }})
}

func (a *agent) make(_ context.Context, s Session) (*mcp.Server, error) {
	s.OnAlarm(func(ctx context.Context, alarm Alarm) error {
		a.mu.Lock()
		a.rung = append(a.rung, alarm.Name+" "+string(alarm.Payload))
		handle := a.handle
		a.mu.Unlock()
		if handle == nil {
			return nil
		}
		return handle(ctx, s, alarm)
	})
	return mcp.NewServer(&mcp.Implementation{Name: "agent"}, s.Options()), nil
}

// session returns the session in the state in which a message finds it.
func (a *agent) session() Session {
	a.t.Helper()
	s, _, err := a.store.Load(a.t.Context(), a.id, "")
	commontest.OK(a.t, err)
	return Session{&environment{k: a.backend(), record: s, server: Hosted{Make: a.make}, init: s.Init}}
}

func (a *agent) wakeAt(name string, in time.Duration, payload any) Alarm {
	a.t.Helper()
	before := maps.Clone(a.set)
	commontest.OK(a.t, a.session().WakeAt(a.t.Context(), name, time.Now().Add(in), payload))
	for id, alarm := range a.set {
		if _, old := before[id]; !old {
			return alarm
		}
	}
	a.t.Fatal("WakeAt has scheduled nothing")
	return Alarm{}
}

// due delivers an alarm by the event that a scheduler sends.
func (a *agent) due(alarm Alarm) error {
	a.t.Helper()
	event, err := AlarmEvent(alarm)
	commontest.OK(a.t, err)
	alarm, ok := ReadAlarm(event)
	if !ok {
		a.t.Fatalf("no alarm: %s", event)
	}
	return a.backend().Handle(a.t.Context(), alarm)
}

func (a *agent) wantRung(want ...string) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	commontest.SameIn(a.t, "rung", want, a.rung)
}

// at runs a test on virtual time.
func at(t *testing.T, test func(t *testing.T, a *agent)) {
	synctest.Test(t, func(t *testing.T) { test(t, newAgent(t, storagetest.NewMemory())) })
}

func TestAnAlarmThatComesTwiceIsHandledOnce(t *testing.T) {
	at(t, func(t *testing.T, a *agent) {
		alarm := a.wakeAt("report", time.Minute, map[string]int{"n": 1})
		time.Sleep(time.Minute) // virtual
		a.handle = func(ctx context.Context, _ Session, _ Alarm) error { return storage.Rest(ctx, time.Minute) }
		var both sync.WaitGroup
		errs := make(chan error, 2)
		for range 2 {
			both.Go(func() { errs <- a.due(alarm) })
		}
		both.Wait()
		if one, two := <-errs, <-errs; one != nil && two != nil {
			t.Errorf("errors %v and %v, want one at most", one, two)
		}
		commontest.Check(t, a.due(alarm)) // the alarm that found it held comes again
		a.wantRung(`report {"n":1}`)
	})
}

func TestAnAlarmOfTheSameNameIsReplaced(t *testing.T) {
	at(t, func(t *testing.T, a *agent) {
		first := a.wakeAt("report", time.Minute, "first")
		second := a.wakeAt("report", time.Hour, "second")
		if _, ok := a.set[first.ID()]; ok || len(a.set) != 1 {
			t.Errorf("scheduled is %v, want the second only", a.set)
		}
		time.Sleep(time.Minute) // virtual
		commontest.Check(t, a.due(first))
		a.wantRung()
		time.Sleep(time.Hour) // virtual
		commontest.Check(t, a.due(second))
		a.wantRung(`report "second"`)
	})
}

func TestAnAlarmWhoseFunctionDiedBeforeItWasScheduledIsFoundByTheOneItReplaced(t *testing.T) {
	at(t, func(t *testing.T, a *agent) {
		first := a.wakeAt("report", time.Minute, "first")
		next := schedule{At: time.Now().Add(time.Hour).UTC(), Payload: []byte(`"second"`)}
		_, err := a.session().setSchedule(t.Context(), "report", &next)
		commontest.OK(t, err)
		time.Sleep(time.Minute) // virtual
		delete(a.set, first.ID())
		commontest.OK(t, a.due(first))
		time.Sleep(time.Hour) // virtual
		for _, alarm := range maps.Clone(a.set) {
			commontest.Check(t, a.due(alarm))
		}
		a.wantRung(`report "second"`)
	})
}

func TestAHandlerThatFailsIsCalledThreeTimes(t *testing.T) {
	at(t, func(t *testing.T, a *agent) {
		alarm := a.wakeAt("report", 0, nil)
		a.handle = func(_ context.Context, _ Session, a Alarm) error {
			panic("broken")
		}
		for try := range 5 {
			if err := a.due(alarm); (err != nil) != (try < 2) {
				t.Errorf("try %d: %v", try, err)
			}
		}
		a.wantRung("report null", "report null", "report null")
	})
}

func TestAHandlerWhoseFunctionDiedIsCalledAgainWhenItsLeaseHasRunOut(t *testing.T) {
	at(t, func(t *testing.T, a *agent) {
		alarm := a.wakeAt("report", 0, nil)
		state := a.session().State(OfSession)
		v, err := a.store.LoadValue(t.Context(), state.own(alarmPrefix+"report"))
		if err == nil {
			_, err = state.save(t.Context(), v, schedule{At: alarm.At, Until: time.Now().Add(lease), Tries: 1})
		}
		commontest.OK(t, err)
		begun := time.Now()
		commontest.Check(t, a.due(alarm))
		commontest.EqualIn(t, "called again after", lease, time.Since(begun))
		a.wantRung("report ")
	})
}

func TestAHandlerMaySetItsAlarmAnew(t *testing.T) {
	at(t, func(t *testing.T, a *agent) {
		a.handle = func(ctx context.Context, s Session, alarm Alarm) error {
			return s.WakeAt(ctx, alarm.Name, time.Now().Add(time.Hour), "again")
		}
		first := a.wakeAt("tick", 0, "first")
		clear(a.set)
		commontest.OK(t, a.due(first))
		time.Sleep(time.Hour) // virtual
		for _, alarm := range maps.Clone(a.set) {
			commontest.OK(t, a.due(alarm))
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
			s := a.session().in.record
			s.State = storage.Ended
			commontest.OK(t, a.store.Save(t.Context(), s))
			time.Sleep(time.Minute)
		}, 0},
		"of a session that has expired": {func(*testing.T, *agent) { time.Sleep(48 * time.Hour) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			at(t, func(t *testing.T, a *agent) {
				alarm := a.wakeAt("report", time.Minute, nil)
				tt.leave(t, a)
				clear(a.set) // it rings
				commontest.Check(t, a.due(alarm))
				commontest.EqualIn(t, "scheduled", tt.again, len(a.set))
				a.wantRung()
			})
		})
	}
}

func TestAlarmsAreBounded(t *testing.T) {
	at(t, func(t *testing.T, a *agent) {
		long := strings.Repeat("x", MaxAlarmPayload)
		for name, c := range map[string]struct {
			payload any
			want    storage.Code
		}{
			"":                                   {nil, storage.Invalid},
			strings.Repeat("n", MaxAlarmName+1):  {nil, storage.Invalid},
			"payload":                            {long, storage.TooLarge},
			strings.Repeat("\x00", MaxAlarmName): {long[:MaxAlarmPayload-2], ""},
		} {
			err := a.session().WakeAt(t.Context(), name, time.Now(), c.payload)
			commontest.EqualIn(t, fmt.Sprintf("WakeAt of %.10q", name), c.want, storage.CodeOf(err))
		}
	})
}

func TestAlarmsAreNamedAsEventBridgeWantsIt(t *testing.T) {
	a := Alarm{Session: "s1", Tenant: "é / tenant", Server: strings.Repeat("s", 500), Name: "n", At: time.Unix(1, 0)}
	same, other := a, a
	same.Payload, other.At = []byte("1"), a.At.Add(time.Millisecond)
	if a.ID() != same.ID() || a.ID() == other.ID() {
		t.Errorf("IDs are %s, the same: %s, of another time: %s", a.ID(), same.ID(), other.ID())
	}
	if len(a.ID()) != 32 || strings.Trim(a.ID(), "0123456789abcdefghijklmnopqrstuv") != "" {
		t.Errorf("ID is %q", a.ID())
	}
}

func TestAnEventOfAPIGatewayIsNoAlarm(t *testing.T) {
	for _, event := range []string{
		`{"httpMethod":"POST","path":"/x/mcp","body":"{\"dormouseAlarm\":{\"session\":\"s1\"}}","headers":{"dormouseAlarm":"{}"},"queryStringParameters":{"dormouseAlarm":"1"}}`,
		`{"dormouseAlarm":null}`, `{"dormouseAlarm":{}}`, `{"dormouseAlarm":7}`, `[]`, ``,
	} {
		if a, ok := ReadAlarm([]byte(event)); ok {
			t.Errorf("%s is an alarm: %+v", event, a)
		}
	}
}
