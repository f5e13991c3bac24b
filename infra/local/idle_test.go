package local

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	boxes "github.com/dormouse-mcp/dormouse/shared/backend/fleet/process"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// alarms stands for the functions of a machine, with this number of alarms that wait.
type alarms struct {
	Functions
	store   storage.Store
	waiting atomic.Int64
}

func (a *alarms) Records() storage.Store { return a.store }

func (a *alarms) Boxes() []fleet.Status { return nil }

func (a *alarms) WaitingAlarms() int { return int(a.waiting.Load()) }

func TestAnIdleMachineEndsUnlessSomethingHoldsIt(t *testing.T) {
	const after = 10 * time.Minute
	nothing := func(*use, *alarms) func() { return func() {} }
	for name, hold := range map[string]func(*use, *alarms) (release func()){
		"nothing": nothing,
		"a request": func(u *use, _ *alarms) func() {
			u.add(false, 1)
			return func() { u.add(false, -1) }
		},
		"a connection": func(u *use, _ *alarms) func() {
			u.note(http.StateNew)
			return func() { u.note(http.StateClosed) }
		},
		"an alarm": func(_ *use, a *alarms) func() {
			a.waiting.Store(1)
			return func() { a.waiting.Store(0) }
		},
		"a call that waits": func(_ *use, a *alarms) func() {
			box := storage.Box{ID: "local/job", Tenant: "local", Server: "job", Gen: 1, State: storage.Starting, Owner: "gone"}
			save := func() {
				commontest.Check(t, a.store.SaveBox(t.Context(), box))
			}
			save()
			return func() {
				box.State, box.Rev = storage.Asleep, 1
				save()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &alarms{store: storagetest.NewMemory()}
				m := &machine{cfg: Config{ExitWhenIdle: after}, functions: f, public: &listeners{}, log: slog.New(slog.DiscardHandler), boxes: boxes.NewPool(boxes.Config{})}
				defer func() { _ = m.boxes.Close(context.WithoutCancel(t.Context())) }()
				release := hold(&m.public.use, f)
				ended := make(chan time.Time, 1)
				go func() {
					awaitEnd(t.Context(), m)
					ended <- time.Now()
				}()
				time.Sleep(time.Hour) // of the synctest clock
				synctest.Wait()
				if held := name != "nothing"; held == (len(ended) == 1) {
					t.Fatalf("after an hour it has ended: %t", len(ended) == 1)
				}
				released := time.Now()
				release()
				if took := (<-ended).Sub(released); took > after+after/2 {
					t.Errorf("it ended %s after the release, want about %s", took, after)
				}
			})
		})
	}
}

// lastClient is a listener whose last client comes just as it is closed.
type lastClient struct {
	comes  func()
	closed chan struct{}
}

func (l *lastClient) Accept() (net.Conn, error) {
	<-l.closed
	return nil, net.ErrClosed
}

func (l *lastClient) Close() error {
	l.comes()
	close(l.closed)
	return nil
}

func (*lastClient) Addr() net.Addr { return &net.TCPAddr{} }

func TestAnIdleMachineDoesWhatARequestBeganWhileItsEndpointsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &alarms{store: storagetest.NewMemory()}
		m := &machine{cfg: Config{ExitWhenIdle: time.Minute}, functions: f, public: &listeners{}, log: slog.New(slog.DiscardHandler), boxes: boxes.NewPool(boxes.Config{})}
		defer func() { _ = m.boxes.Close(context.WithoutCancel(t.Context())) }()
		came := false
		l := &lastClient{closed: make(chan struct{}), comes: func() {
			came = true
			f.waiting.Store(1)
			time.AfterFunc(lastRequests/2, func() { f.waiting.Store(0) })
		}}
		var serving sync.WaitGroup
		server := &http.Server{ReadHeaderTimeout: time.Minute}
		m.public.use.count(server)
		serving.Go(func() { _ = server.Serve(l) })
		synctest.Wait()
		awaitEnd(t.Context(), m)
		serving.Wait()
		if !came || f.waiting.Load() > 0 {
			t.Errorf("a request came at the end: %t; the machine ended before its work was done: %t", came, f.waiting.Load() > 0)
		}
	})
}
