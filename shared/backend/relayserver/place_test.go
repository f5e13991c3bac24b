package relayserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// unlisted is a place that does not list its tasks. If gone is set, all connections are
// closed.
type unlisted struct {
	gone bool
	ran  []fleet.Task
	why  error // of Run
}

func (f *unlisted) Run(_ context.Context, t fleet.Task) (string, error) {
	f.ran = append(f.ran, t)
	return "x/" + t.ClientToken, f.why
}

func (f *unlisted) Stop(context.Context, string, string) error { return nil }

func (f *unlisted) Tasks(context.Context) ([]fleet.Status, error) { return nil, fleet.ErrUnlisted }

func (f *unlisted) Traits(string) fleet.Traits {
	return fleet.Traits{Lifetime: 15 * time.Minute, Invites: true, StartTimeout: 75 * time.Second}
}

func (f *unlisted) Post(context.Context, string, []byte) error {
	if f.gone {
		return storage.Closed
	}
	return nil
}

const (
	// goneAfter is how long a connection must be closed until its box is lost.
	goneAfter = 20 * time.Second
	// lookAfter is how often a function that waits for an accepted call checks its box.
	lookAfter = 10 * time.Second
)

const unlistedBox = storage.BoxID("t/s")

// unlistedWorld has an awake box in a place that does not list its tasks.
func unlistedWorld(t *testing.T) (f *unlisted, store *storagetest.Memory, c relayserver.Config) {
	t.Helper()
	f, store = &unlisted{}, storagetest.NewMemory()
	now := time.Now()
	commontest.OK(t, store.SaveBox(t.Context(), storage.Box{
		ID: unlistedBox, Tenant: "t", Server: "s", State: storage.Awake, Gen: 3, Runner: "r", Conn: "c", Link: 1, Changed: now, Began: now,
		Place: "x", Task: "x/" + relayserver.ClientToken(unlistedBox, 3),
	}))
	c = configOf(t, store)
	c.Fleet, c.Poster = f, f
	return f, store, c
}

// startedWorld has a box that was lost, and a second start of it in a place that does not
// list its tasks, for a request that waits.
func startedWorld(t *testing.T, set func(*relayserver.Config)) (f *unlisted, store *storagetest.Memory, c relayserver.Config) {
	t.Helper()
	f, store = &unlisted{}, lostBoxes(t, storage.Item{Box: unlistedBox, ID: "a"})
	if _, err := store.PutItem(t.Context(), storage.Item{
		Box: unlistedBox, ID: "b", State: storage.Waiting, Raw: []byte("{}"), NotAfter: time.Now().Add(10 * time.Minute),
		Address: storage.Address{Session: "one", Stream: "b", Box: unlistedBox},
	}); err != nil {
		t.Fatal(err)
	}
	c = configOf(t, store)
	c.Fleet, c.Poster = f, f
	set(&c)
	sweep(t, c)
	if len(f.ran) != 1 {
		t.Fatalf("%d tasks", len(f.ran))
	}
	return f, store, c
}

// unlistedAsylum is an asylum whose box is in a place that does not list its tasks.
func unlistedAsylum(t *testing.T, gone bool) (*asylum, *unlisted) {
	t.Helper()
	a, f := newAsylum(t), &unlisted{gone: gone}
	a.config.Fleet, a.config.Poster = f, &mortal{a, f}
	a.changes(func(b *storage.Box) { b.Place, b.Task, b.Changed = "x", "x/task", time.Now() })
	a.host = sessions.New(a.store, relayserver.NewBackend(a.config), sessions.Limits{})
	return a, f
}

func stateOf(t *testing.T, store storage.Store) storage.BoxState {
	t.Helper()
	b, err := store.Box(t.Context(), unlistedBox)
	commontest.OK(t, err)
	return b.State
}

func sweep(t *testing.T, c relayserver.Config) {
	t.Helper()
	commontest.Check(t, relayserver.NewSweeper(c).Sweep(t.Context()))
}

func TestABoxThatNoListHasIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store, c := unlistedWorld(t)
		for range 3 { // 15 minutes
			sweep(t, c)
			if s := stateOf(t, store); s != storage.Awake {
				t.Fatalf("the box is %s", s)
			}
			time.Sleep(5 * time.Minute)
		}
		time.Sleep(2 * time.Minute)
		sweep(t, c)
		if s := stateOf(t, store); s != storage.Asleep {
			t.Errorf("the box is %s after the life of every task", s)
		}
	})
}

func TestABoxIsLostWhoseConnectionIsGoneTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, store, c := unlistedWorld(t)
		f.gone = true
		sweep(t, c)
		time.Sleep(goneAfter - time.Second)
		sweep(t, c)
		if s := stateOf(t, store); s != storage.Awake {
			t.Fatalf("the box is %s too soon", s)
		}
		time.Sleep(time.Second)
		sweep(t, c)
		commontest.EqualIn(t, "the box is", storage.Asleep, stateOf(t, store))
	})
}

func TestARunnerThatComesBackIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, store, c := unlistedWorld(t)
		f.gone = true
		sweep(t, c)
		if _, err := relayserver.NewHandler(c).Frame(t.Context(), "c2", frametest.Encode(frametest.Frame{
			Type: frame.TypeHello, Box: unlistedBox, Gen: 3, Runner: "r", Link: 2,
		})); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		sweep(t, c)
		if s := stateOf(t, store); s != storage.Awake {
			t.Errorf("the box is %s, though its runner has another connection", s)
		}
	})
}

// A call that comes after the death of an idle runner wakes another one.
func TestACallThatMeetsADeadBoxOfSuchAPlaceIsExecutedByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f := unlistedAsylum(t, true)
		call := a.calls()
		begun := time.Now()
		events, err := call.Next(t.Context(), begun) // until another start gives it a trace
		if took := time.Since(begun); err != nil || len(events) > 0 || len(f.ran) != 1 || took > goneAfter+time.Second {
			t.Fatalf("%v, %v; %d starts after %s", events, err, len(f.ran), took)
		}
	})
}

// When a client comes back for a call whose item waits for a dead box, the next box is woken.
func TestAWaitingItemOfADeadBoxOfSuchAPlaceWakesTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f := unlistedAsylum(t, true)
		a.waits()
		tracker := a.tracks(a.store)
		for begun := time.Now(); len(f.ran) == 0; {
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

// mortal is a Poster that passes messages to an asylum until place.gone is set. From then
// on, the runner's connection is closed.
type mortal struct {
	*asylum
	place *unlisted
}

func (m *mortal) Post(ctx context.Context, conn string, data []byte) error {
	if m.place.gone {
		return storage.Closed
	}
	return m.asylum.Post(ctx, conn, data)
}

// A place that does not list its tasks does not report their ends either. A function that
// waits for a call checks the connection of the box itself.
func TestACallWhoseRunnerIsKilledEndsSoonWithoutAReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f := unlistedAsylum(t, false)
		call := a.calls()
		a.stream = a.posted(frame.TypeDeliver)[0].ID
		if may, err := a.ask(); err != nil || may.Refused != "" { // the runner has it
			t.Fatalf("%+v, %v", may, err)
		}
		if events, err := call.Next(t.Context(), time.Now().Add(5*time.Minute)); err != nil || len(events) > 0 {
			t.Fatalf("a call of a box that lives ended with %v, %v", events, err)
		}
		f.gone = true
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

// The second attempt of a wake may go to another place, which has its own StartTimeout.
func TestAStartThatDoesNotComeGoesToAnotherPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, c := startedWorld(t, func(c *relayserver.Config) {
			c.Place = func(b storage.Box) string { return map[int]string{1: "fast", 2: "slow"}[b.Attempt] }
		})
		time.Sleep(74 * time.Second)
		sweep(t, c)
		if len(f.ran) != 1 || f.ran[0].Place != "fast" {
			t.Fatalf("%+v", f.ran)
		}
		time.Sleep(2 * time.Second)
		sweep(t, c)
		if len(f.ran) != 2 || f.ran[1].Place != "slow" {
			t.Errorf("%+v", f.ran)
		}
	})
}

// A place that refuses a start says why. It is not asked again, and the box stays asleep, so
// that the next message asks anew.
func TestARefusedStartIsTheAnswer(t *testing.T) {
	_, store, _ := startedWorld(t, func(c *relayserver.Config) {
		c.Poster.(*unlisted).why = fleet.Refusal{Why: "the vault is locked"}
	})
	b, err := store.Box(t.Context(), unlistedBox)
	if err != nil || b.State != storage.Asleep || b.Failure.Detail != "the vault is locked" {
		t.Errorf("%+v, %v", b, err)
	}
}

// An invited task learns nothing secret before its hello, and everything with the welcome.
func TestTheLaunchOfAnInvitedRunnerComesWithItsWelcome(t *testing.T) {
	const canary = "canary-4711"
	fails := false
	f, _, c := startedWorld(t, func(c *relayserver.Config) {
		c.Launch = func(storage.Box) (map[string]string, error) {
			if fails {
				return nil, storage.Errorf(storage.NotFound, "the server is gone")
			}
			return map[string]string{"DORMOUSE_SERVER": canary, frame.EnvRelayURL: "wss://relay"}, nil
		}
	})
	env := f.ran[0].Env
	for name, value := range env {
		if value == canary {
			t.Errorf("%s is in the task", name)
		}
	}
	if env[frame.EnvRelayURL] != "wss://relay" || env[frame.EnvToken] == "" || env[frame.EnvPass] == "" {
		t.Errorf("the task has %v", env)
	}
	h := relayserver.NewHandler(c)
	say := func(runner string, change func(*frame.Hello)) frame.Frame {
		t.Helper()
		hello := frame.Hello{Sender: frame.Sender{Box: unlistedBox, Gen: 2, Runner: runner}, Link: 1, Token: env[frame.EnvToken], Invited: true}
		change(&hello)
		reply, err := h.Frame(t.Context(), "c", frame.Encode(hello))
		commontest.OK(t, err)
		f, err := frame.Decode(reply)
		commontest.OK(t, err)
		return f
	}
	same := func(*frame.Hello) {}
	fails = true
	if _, fenced := say("one", same).(frame.Fenced); !fenced {
		t.Error("a runner whose server is gone was not sent away")
	}
	fails = false
	if _, fenced := say("one", func(f *frame.Hello) { f.Token = "wrong" }).(frame.Fenced); !fenced {
		t.Error("a runner without the token was not fenced")
	}
	for _, what := range []string{"the first hello", "the same hello again, for its welcome was lost"} {
		if w, ok := say("one", same).(frame.Welcome); !ok || w.Launch["DORMOUSE_SERVER"] != canary {
			t.Errorf("%s: %+v", what, w)
		}
	}
	if _, fenced := say("two", same).(frame.Fenced); !fenced {
		t.Error("a second runner of the same token was not fenced")
	}
	if w, ok := say("one", func(f *frame.Hello) { f.Invited, f.Token = false, "" }).(frame.Welcome); !ok || len(w.Launch) != 0 {
		t.Errorf("a ping: %+v", w)
	}
}

// Secrets of other services reach the runner that shows the token, with its welcome. They
// cost one request a welcome with a launch, and none for a runner that is fenced or pings.
// They are neither in the task, nor in the store, nor in the log.
func TestSecretsOfAnInvitedRunnerAreAskedForOnceAndKeptNowhere(t *testing.T) {
	const canary = "canary-0815"
	var log bytes.Buffer
	asked, down := 0, false
	f, store, c := startedWorld(t, func(c *relayserver.Config) {
		c.Launch = func(storage.Box) (map[string]string, error) { return map[string]string{"DORMOUSE_SERVER": "x"}, nil }
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c.Resolve = func(_ context.Context, b storage.Box) (map[string]string, error) {
			if asked++; down {
				return nil, storage.Errorf(storage.Unavailable, "Systems Manager is down")
			}
			return map[string]string{"DORMOUSE_ENV_TOKEN": canary + " of " + string(b.ID)}, nil
		}
	})
	if asked != 0 || strings.Contains(fmt.Sprint(f.ran), canary) {
		t.Errorf("the start asked %d times for secrets: %v", asked, f.ran)
	}
	h := relayserver.NewHandler(c)
	say := func(runner string, invited bool) (frame.Frame, error) {
		hello := frame.Hello{Sender: frame.Sender{Box: unlistedBox, Gen: 2, Runner: runner}, Link: 1, Token: f.ran[0].Env[frame.EnvToken], Invited: invited}
		reply, err := h.Frame(t.Context(), "c", frame.Encode(hello))
		if err != nil {
			return nil, err
		}
		return frame.Decode(reply)
	}
	down = true
	if _, err := say("one", true); !errors.Is(err, storage.Unavailable) {
		t.Errorf("while the secrets cannot be read: %v", err)
	}
	asked, down = 0, false
	for range 2 { // the welcome was lost
		got, err := say("one", true)
		if w, ok := got.(frame.Welcome); !ok || w.Launch["DORMOUSE_ENV_TOKEN"] != canary+" of "+string(unlistedBox) || err != nil {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if got, err := say("two", true); err != nil || got.(frame.Fenced).Link != 1 {
		t.Errorf("a second runner: %+v, %v", got, err)
	}
	if got, err := say("one", false); err != nil || len(got.(frame.Welcome).Launch) != 0 {
		t.Errorf("a ping: %+v, %v", got, err)
	}
	if asked != 2 {
		t.Errorf("two welcomes with a launch asked %d times for secrets", asked)
	}
	box, err := store.Box(t.Context(), unlistedBox)
	items, more := store.Items(t.Context(), unlistedBox)
	if kept := fmt.Sprintf("%+v %+v", box, items); err != nil || more != nil || strings.Contains(kept, canary) {
		t.Errorf("the store has a secret: %s, %v, %v", kept, err, more)
	}
	if strings.Contains(log.String(), canary) {
		t.Errorf("the log has a secret: %s", &log)
	}
}

// The image of a place may hold the install of a server. The first runner there tells the
// host so, and the host uses this when it chooses the place of the next start.
func TestABoxIsKnownByTheDefinitionThatItsImageHas(t *testing.T) {
	for baked, want := range map[bool]string{true: "the definition", false: ""} {
		f, store, c := startedWorld(t, func(*relayserver.Config) {})
		hello := frame.Hello{Sender: frame.Sender{Box: unlistedBox, Gen: 2, Runner: "r"}, Link: 1, Token: f.ran[0].Env[frame.EnvToken], Digest: "the definition", Baked: baked}
		if _, err := relayserver.NewHandler(c).Frame(t.Context(), "c", frame.Encode(hello)); err != nil {
			t.Fatal(err)
		}
		b, err := store.Box(t.Context(), unlistedBox)
		if err != nil || b.State != storage.Awake || b.Installed != want {
			t.Errorf("baked %v: %s box, installed is %q, %v", baked, b.State, b.Installed, err)
		}
	}
}
