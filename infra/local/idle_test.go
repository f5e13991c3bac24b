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

// stub stands for the functions of a machine.
type stub struct {
	Functions
	store   storage.Store
	waiting atomic.Int64 // alarms
	sweeps  atomic.Int64
}

func (s *stub) Records() storage.Store { return s.store }

func (s *stub) Boxes() []fleet.Status { return nil }

func (s *stub) WaitingAlarms() int { return int(s.waiting.Load()) }

func (s *stub) Sweep(*fleet.Status) <-chan struct{} {
	s.sweeps.Add(1)
	done := make(chan struct{})
	close(done)
	return done
}

// idleMachine returns a machine over a stub that ends after some idle time.
func idleMachine(t *testing.T, after time.Duration) (*machine, *stub) {
	t.Helper()
	f := &stub{store: storagetest.NewMemory()}
	m := &machine{cfg: Config{ExitWhenIdle: after}, functions: f, public: &listeners{}, log: slog.New(slog.DiscardHandler), boxes: boxes.NewPool(boxes.Config{})}
	t.Cleanup(func() { _ = m.boxes.Close(context.WithoutCancel(t.Context())) })
	return m, f
}

func TestAnIdleMachineEndsUnlessSomethingHoldsIt(t *testing.T) {
	const after = 10 * time.Minute
	nothing := func(*use, *stub) func() { return func() {} }
	for name, hold := range map[string]func(*use, *stub) (release func()){
		"nothing": nothing,
		"a request": func(u *use, _ *stub) func() {
			u.add(false, 1)
			return func() { u.add(false, -1) }
		},
		"a connection": func(u *use, _ *stub) func() {
			open := &openConnections{since: map[net.Conn]time.Time{}}
			u.count(&http.Server{}, open) //nolint:gosec // it never serves
			conn := &net.TCPConn{}
			open.note(conn, http.StateNew)
			return func() { open.note(conn, http.StateClosed) }
		},
		"an alarm": func(_ *use, a *stub) func() {
			a.waiting.Store(1)
			return func() { a.waiting.Store(0) }
		},
		"a call that waits": func(_ *use, a *stub) func() {
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
				m, f := idleMachine(t, after)
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
		m, f := idleMachine(t, time.Minute)
		came := false
		l := &lastClient{closed: make(chan struct{}), comes: func() {
			came = true
			f.waiting.Store(1)
			time.AfterFunc(lastRequests/2, func() { f.waiting.Store(0) })
		}}
		var serving sync.WaitGroup
		server := &http.Server{ReadHeaderTimeout: time.Minute}
		m.public.use.count(server, &openConnections{})
		serving.Go(func() { _ = server.Serve(l) })
		synctest.Wait()
		awaitEnd(t.Context(), m)
		serving.Wait()
		if !came || f.waiting.Load() > 0 {
			t.Errorf("a request came at the end: %t; the machine ended before its work was done: %t", came, f.waiting.Load() > 0)
		}
	})
}
