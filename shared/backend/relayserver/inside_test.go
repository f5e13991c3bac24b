package relayserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// insider is a box in the program of its host, and the guard of that box.
type insider struct {
	frame.Executor
	busy atomic.Int64
}

func (*insider) Go(do func())                            { go do() }
func (*insider) Catch()                                  {}
func (*insider) Panicked() <-chan struct{}               { return nil }
func (i *insider) Deliver(frame.Deliver)                 { i.busy.Add(1) }
func (i *insider) IdleSince() (since time.Time, ok bool) { return time.Time{}, i.busy.Load() == 0 }

// moves has the box run in the program of its host, and gives it two calls, which wake it.
func (a *asylum) moves() (box *insider, link frame.Link, calls [2]storage.Address) {
	a.t.Helper()
	a.config.Inside, a.config.IsInside = relayserver.NewInside(nil), func(string) bool { return true }
	a.config.Inside.Serve(relayserver.NewHandler(a.config))
	for i := range calls {
		calls[i] = a.address()
		calls[i].Stream = storage.NewStreamID()
		d := sessions.Delivery{Address: calls[i], Client: a.session(), Server: "s", Raw: []byte(a.request("{}"))}
		_, err := a.backend().Deliver(a.t.Context(), d, a.box())
		commontest.OK(a.t, err)
	}
	box = &insider{}
	link, err := a.config.Inside.Join(frame.Joining{
		Box: asylumBox, Token: a.task.Env[frame.EnvToken], Executor: box, Idle: time.Hour, Flush: time.Minute, Guard: box,
	})
	commontest.OK(a.t, err)
	return box, link, calls
}

// The store fails once. Then the box loses no event of its two calls, though the program ends at that
// moment. The store has a trace of a call before it has an event.
func TestABoxInsideLosesNothingWhenAWriteFails(t *testing.T) {
	for method, last := range map[string]storage.Index{"Append": 1, "PutItem": storage.MaxBatchEvents + 3} {
		t.Run(method, timed(func(t *testing.T, a *asylum) {
			a.sleeps()
			a.config.Store = failsOnce(a.store, method)
			box, link, calls := a.moves()
			ctx, end := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- link.Run(ctx) }()
			synctest.Wait()
			said := storage.Index(0)
			for said < last {
				said++
				for _, to := range calls {
					e := frame.Event{Session: "s1", Stream: to.Stream, Raw: wire.NewNotification(wire.NotifyMessage, []byte(`{}`)), Final: said == last}
					if e.Final {
						e.Raw = wire.ResultResponse(json.RawMessage("77"), []byte("{}"))
						box.busy.Add(-1)
					}
					link.Event(e)
				}
				if said > 1 || last == 1 {
					continue
				}
				synctest.Wait()
				for _, to := range calls {
					tail, err := a.store.Tail(t.Context(), "s1", to.Stream)
					_, none := a.store.Item(t.Context(), asylumBox, to.Stream)
					if err != nil || none != nil && tail.Last > 0 {
						t.Errorf("the log has %d events, and no item says who owes the end: %v, %v", tail.Last, none, err)
					}
				}
			}
			end()
			commontest.OK(t, <-ended)
			for _, to := range calls {
				var events []storage.Event
				for page := (storage.Page{More: true}); page.More; {
					var err error
					page, err = a.store.Read(t.Context(), "s1", to.Stream, storage.Index(len(events)), storage.MaxRead)
					commontest.OK(t, err)
					events = append(events, page.Events...)
				}
				for _, e := range events {
					commontest.EqualIn(t, "an event ends its call", e.Index == last, e.Final)
				}
				commontest.EqualIn(t, "events in the log", int(last), len(events))
				a.stream = to.Stream
				a.gone()
			}
		}))
	}
}

// A box that panics owes the ends of its calls. No item says so yet, and no function may wait.
func TestCallsOfABoxInsideEndWithIt(t *testing.T) {
	inTime(t, func(t *testing.T, a *asylum) {
		a.sleeps()
		_, _, calls := a.moves()
		a.config.Inside.Left(a.task.Env)
		commontest.OK(t, relayserver.NewSweeper(a.config).Stopped(t.Context(), fleet.Status{
			ID: "task-2", ClientToken: a.task.ClientToken, Box: string(asylumBox), State: fleet.Stopped, ExitCode: 1,
		}))
		for _, to := range calls {
			a.stream = to.Stream
			commontest.Contains(t, "the end", "the box could not start", string(a.end().Raw))
		}
	})
}

// A program was killed, and the next one wakes the box before the sweep has seen it. What the box had
// may have been executed.
func TestACallOfAKilledProgramIsNotExecutedByTheNext(t *testing.T) {
	inTime(t, func(t *testing.T, a *asylum) {
		a.waits()
		_, err := a.store.Claim(t.Context(), asylumBox, a.stream, asylumGen)
		commontest.OK(t, err)
		a.changes(func(b *storage.Box) { b.Conn, b.Place = relayserver.InsideConn(asylumBox), fleet.Inside })
		a.moves()
		a.tasks = append(a.tasks, fleet.Status{ID: "task-2", Box: string(asylumBox), State: fleet.Running})
		a.sweep()
		commontest.Contains(t, "the end", "-32010", string(a.end().Raw))
	})
}

// A client of another session has learned the name of a stream.
func TestAStreamIsFollowedByItsSessionOnly(t *testing.T) {
	a := newAsylum(t)
	a.waits()
	s := a.session()
	s.ID = "s2"
	if _, err := a.backend().Track(t.Context(), s, a.stream); !errors.Is(err, storage.NotFound) {
		t.Errorf("got %v", err)
	}
}

// Each round of a call is another item in the inbox, and a box that is awake gets them all.
func TestACallOfABoxInsideAsksTwice(t *testing.T) {
	inTime(t, func(t *testing.T, a *asylum) {
		a.sleeps()
		box, link, calls := a.moves()
		a.rehost()
		a.stream = calls[0].Stream
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			_ = link.Run(ctx) // calls are in flight, so its error says nothing
			close(ended)
		}()
		for round := range 2 {
			synctest.Wait()
			id := storage.QuestionID(a.stream, round+1, 0)
			link.Event(frame.Event{
				Session: "s1", Stream: a.stream, Raw: wire.NewRequest(json.RawMessage(`"`+id+`"`), wire.MethodElicit, nil),
				Asks: &frame.Suspension{
					Questions: []storage.Question{{ID: id, Key: "k", Method: wire.MethodElicit}}, Raw: []byte(a.request(`{"name":"n"}`)), Within: time.Hour,
				},
			})
			synctest.Wait()
			a.answers(round+1, 0, yes)
			synctest.Wait()
			commontest.EqualIn(t, "deliveries of two calls", int64(3+round), box.busy.Load())
		}
		end()
		<-ended
	})
}
