package relayserver_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	// goneAfter is how long a connection must be closed until its box is lost.
	goneAfter = 20 * time.Second
	// lookAfter is how often a function that waits for an accepted call checks its box.
	lookAfter = 10 * time.Second
)

// newUnlisted is an asylum whose box is in a place that does not list its tasks, and invites
// them.
func newUnlisted(t *testing.T) *asylum {
	a := newAsylum(t)
	a.can, a.fails = fleet.Traits{Lifetime: 15 * time.Minute, Invites: true, StartTimeout: 75 * time.Second}, fleet.ErrUnlisted
	a.changes(func(b *storage.Box) { b.Place, b.Task, b.Changed, b.Began = "x", "x/task", time.Now(), time.Now() })
	return a
}

// is checks the state of the box after a sweep.
func (a *asylum) isSwept(what string, want storage.BoxState) {
	a.t.Helper()
	a.sweep()
	commontest.EqualIn(a.t, what+", the box is", want, a.box().State)
}

func TestABoxThatNoListHasIsLostAfterTheLifeOfItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newUnlisted(t)
		for range 3 { // 15 minutes
			a.isSwept("alive", storage.Awake)
			time.Sleep(5 * time.Minute)
		}
		time.Sleep(2 * time.Minute)
		a.isSwept("after the life of every task", storage.Asleep)
	})
}

func TestABoxIsLostWhoseConnectionIsGoneTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newUnlisted(t)
		a.closed = true
		a.isSwept("gone once", storage.Awake)
		time.Sleep(goneAfter - time.Second)
		a.isSwept("gone a moment ago", storage.Awake)
		time.Sleep(time.Second)
		a.isSwept("gone twice", storage.Asleep)
	})
}

func TestARunnerThatComesBackIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newUnlisted(t)
		a.closed = true
		a.sweep()
		a.conn = "c2"
		a.handle(a.from(frame.TypeHello, func(f *frametest.Frame) { f.Link = 2 }))
		time.Sleep(2 * time.Minute)
		a.isSwept("with another connection", storage.Awake)
	})
}

// A call that comes after the death of an idle runner wakes another one.
func TestACallThatMeetsADeadBoxOfSuchAPlaceIsExecutedByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newUnlisted(t)
		a.closed = true
		call := a.calls()
		begun := time.Now()
		events, err := call.Next(t.Context(), begun) // until another start gives it a trace
		if took := time.Since(begun); err != nil || len(events) > 0 || a.starts != 1 || took > goneAfter+time.Second {
			t.Fatalf("%v, %v; %d starts after %s", events, err, a.starts, took)
		}
	})
}

// When a client comes back for a call whose item waits for a dead box, the next box is woken.
func TestAWaitingItemOfADeadBoxOfSuchAPlaceWakesTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newUnlisted(t)
		a.closed = true
		a.waits()
		tracker := a.tracks(a.store)
		for begun := time.Now(); a.starts == 0; {
			status, err := tracker.Check(t.Context())
			if err != nil || time.Since(begun) > time.Minute {
				t.Fatalf("no box is started within a minute: %v", err)
			}
			if s := a.box().State; s == storage.Asleep {
				t.Fatalf("Check found the box lost and left it %s", s)
			}
			time.Sleep(time.Until(status.Next))
		}
	})
}

// A place that does not list its tasks does not report their ends either. A function that
// waits for a call checks the connection of the box itself.
func TestACallWhoseRunnerIsKilledEndsSoonWithoutAReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newUnlisted(t)
		call := a.calls()
		a.stream = a.posted(frame.TypeDeliver)[0].ID
		commontest.EqualIn(t, "the runner has it", true, a.may())
		if events, err := call.Next(t.Context(), time.Now().Add(5*time.Minute)); err != nil || len(events) > 0 {
			t.Fatalf("a call of a box that lives ended with %v, %v", events, err)
		}
		a.closed = true
		killed := time.Now()
		events, err := call.Next(t.Context(), time.Now().Add(5*time.Minute))
		if err != nil || len(events) != 1 || !strings.Contains(string(events[0].Raw), `"code":-32010`) || !strings.Contains(string(events[0].Raw), "is not known") {
			t.Fatalf("%v, %v", events, err)
		}
		if took := time.Since(killed); took > lookAfter+goneAfter {
			t.Errorf("the call ended after %s, and the second look that found the connection closed was at most %s after the kill", took, lookAfter+goneAfter)
		}
	})
}

// starting is an asylum whose box is being started in such a place, for a request that waits.
func starting(t *testing.T, set func(a *asylum)) *asylum {
	t.Helper()
	a := newUnlisted(t)
	a.sleeps()
	a.waits()
	set(a)
	a.sweep()
	commontest.EqualIn(t, "starts", 1, a.starts)
	return a
}

// The second attempt of a wake may go to another place, which has its own StartTimeout.
func TestAStartThatDoesNotComeGoesToAnotherPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := starting(t, func(a *asylum) {
			a.config.Place = func(b storage.Box) string { return map[int]string{1: "fast", 2: "slow"}[b.Attempt] }
		})
		time.Sleep(74 * time.Second)
		a.sweep()
		commontest.EqualIn(t, "the only start is at", "1 fast", fmt.Sprint(a.starts, " ", a.task.Place))
		time.Sleep(2 * time.Second)
		a.sweep()
		commontest.EqualIn(t, "the second start is at", "2 slow", fmt.Sprint(a.starts, " ", a.task.Place))
	})
}

// A place that refuses a start says why. It is not asked again, and the box stays asleep, so
// that the next message asks anew.
func TestARefusedStartIsTheAnswer(t *testing.T) {
	a := starting(t, func(a *asylum) { a.refuses = fleet.Refusal{Why: "the vault is locked"} })
	if b := a.box(); b.State != storage.Asleep || b.Failure.Detail != "the vault is locked" {
		t.Errorf("%+v", b)
	}
}

// invited returns the first hello of an invited runner.
func (a *asylum) invited(runner string) frametest.Frame {
	return a.from(frame.TypeHello, func(f *frametest.Frame) {
		f.Gen, f.Runner, f.Token, f.Invited = asylumGen+1, runner, a.task.Env[frame.EnvToken], true
	})
}

// An invited task learns nothing secret before its hello. Everything comes with the welcome of
// the runner that shows the token, also the secrets of other services. These cost one request
// a welcome with a launch, and none for a runner that is fenced or pings. They are neither in
// the task, nor in the store, nor in the log.
func TestTheLaunchOfAnInvitedRunnerComesWithItsWelcome(t *testing.T) {
	const canary = "canary-4711"
	var log bytes.Buffer
	asked, removed, down := 0, true, false
	a := starting(t, func(a *asylum) {
		a.config.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		a.config.Launch = func(storage.Box) (map[string]string, error) {
			return map[string]string{"DORMOUSE_SERVER": canary, frame.EnvRelayURL: "wss://relay"}, nil
		}
		a.config.Resolve = func(_ context.Context, b storage.Box) (map[string]string, error) {
			if asked++; down {
				return nil, storage.Errorf(storage.Unavailable, "Systems Manager is down")
			}
			return map[string]string{"DORMOUSE_ENV_TOKEN": canary + " of " + string(b.ID)}, nil
		}
	})
	env := a.task.Env
	if env[frame.EnvRelayURL] != "wss://relay" || env[frame.EnvToken] == "" || env[frame.EnvPass] == "" || asked != 0 || strings.Contains(fmt.Sprint(a.task), canary) {
		t.Errorf("the start asked %d times for secrets, and the task has %v", asked, env)
	}
	launch := a.config.Launch
	a.config.Launch = func(b storage.Box) (map[string]string, error) {
		if removed {
			return nil, storage.Errorf(storage.NotFound, "the server is gone")
		}
		return launch(b)
	}
	commontest.EqualIn(t, "a runner whose server is gone gets", frame.TypeFenced, a.handle(a.invited("one")).Type)
	removed = false
	guess := a.invited("one")
	guess.Token = "wrong"
	commontest.EqualIn(t, "a runner without the token gets", frame.TypeFenced, a.handle(guess).Type)
	down = true
	_, err := a.say(a.invited("one"))
	commontest.EqualIn(t, "while the secrets cannot be read", storage.Unavailable, storage.CodeOf(err))
	asked, down = 0, false
	for range 2 { // the welcome was lost
		w := a.handle(a.invited("one"))
		if w.Type != frame.TypeWelcome || w.Launch["DORMOUSE_SERVER"] != canary || w.Launch["DORMOUSE_ENV_TOKEN"] != canary+" of t/s" {
			t.Errorf("%+v", w)
		}
	}
	commontest.EqualIn(t, "a second runner of the same token gets", frame.TypeFenced, a.handle(a.invited("two")).Type)
	ping := a.invited("one")
	ping.Invited, ping.Token = false, ""
	if w := a.handle(ping); w.Type != frame.TypeWelcome || len(w.Launch) != 0 {
		t.Errorf("a ping: %+v", w)
	}
	commontest.EqualIn(t, "requests for secrets of two welcomes with a launch", 2, asked)
	items, err := a.store.Items(t.Context(), asylumBox)
	commontest.OK(t, err)
	if kept := fmt.Sprintf("%+v %+v %s", a.box(), items, &log); strings.Contains(kept, canary) {
		t.Errorf("the store or the log has a secret: %s", kept)
	}
}
