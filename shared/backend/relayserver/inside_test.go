package relayserver_test

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
)

// insider is a box in the program of its host, and the guard of that box.
type insider struct {
	frame.Executor
	busy atomic.Int64
}

func (*insider) Go(do func())                            { go do() }
func (*insider) Catch()                                  {}
func (*insider) Panicked() <-chan struct{}               { return nil }
func (i *insider) Deliver(frame.Delivery)                { i.busy.Add(1) }
func (i *insider) IdleSince() (since time.Time, ok bool) { return time.Time{}, i.busy.Load() == 0 }

// The store fails once. Then the box loses no event of its two calls, though the program ends at that
// moment, and shows none before the store has a trace of its call.
func TestABoxInsideLosesNothingWhenAWriteFails(t *testing.T) {
	for method, final := range map[string]bool{"Append": true, "PutItem": false} {
		t.Run(method, timed(func(t *testing.T, a *asylum) {
			a.sleeps()
			fails := true
			a.config.Store = intercept.New(a.store, func(ctx context.Context, call *intercept.Call, do func(context.Context) error) error {
				if call.Method == method && fails {
					fails = false
					return errDown
				}
				return do(ctx)
			})
			a.config.Inside, a.config.IsInside = relayserver.NewInside(nil), func(string) bool { return true }
			a.config.Inside.Serve(relayserver.NewHandler(a.config))
			var calls [2]storage.Address
			for i := range calls {
				calls[i] = a.address()
				calls[i].Stream = storage.NewStreamID()
				_, err := a.backend().Deliver(t.Context(), sessions.Delivery{
					Address: calls[i], Client: a.session(), Server: "s", Raw: []byte(a.request("{}")),
				}, a.box())
				commontest.OK(t, err)
			}
			box := &insider{}
			link, err := a.config.Inside.Join(frame.Joining{
				Box: asylumBox, Token: a.task.Env[frame.EnvToken], Executor: box, Idle: time.Hour, Flush: time.Minute, Guard: box,
			})
			commontest.OK(t, err)
			ctx, end := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- link.Run(ctx) }()
			synctest.Wait()
			says := func(final bool) {
				for _, to := range calls {
					raw := wire.NewNotification(wire.NotifyMessage, []byte(`{}`))
					if final {
						raw = wire.ResultResponse(json.RawMessage("77"), []byte("{}"))
						box.busy.Add(-1)
					}
					link.Event(frame.Event{Session: "s1", Stream: to.Stream, Raw: raw, Final: final})
				}
			}
			if !final {
				says(false)
				for _, to := range calls {
					synctest.Wait()
					page, err := a.store.Read(t.Context(), "s1", to.Stream, 0, 10)
					commontest.OK(t, err)
					if _, err := a.store.Item(t.Context(), asylumBox, to.Stream); err != nil && len(page.Events) > 0 {
						t.Errorf("the log has %s, and no item says who owes the end: %v", page.Events[0].Raw, err)
					}
				}
			}
			says(true)
			end()
			commontest.OK(t, <-ended)
			for _, to := range calls {
				a.stream = to.Stream
				a.end()
				a.gone()
			}
		}))
	}
}
