package local

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// door reads bodies within the limits, as for a request of an admitted caller.
type door struct {
	callers callers
	bodies  bodies
}

func (d *door) read(who string, size int64, body io.Reader) error {
	r, err := http.NewRequest(http.MethodPost, "/", body) //nolint:noctx // nobody sends it
	if err != nil {
		return err
	}
	r.ContentLength = size
	r, release := d.bodies.guard(httptest.NewRecorder(), r)
	defer release()
	done, err := d.callers.admit(r.Context(), host.Caller{Tenant: "default", Principal: who})
	if err != nil {
		return err
	}
	defer done()
	_, err = io.Copy(io.Discard, r.Body)
	return err
}

func TestSlowBodiesOfOneCallerLeaveRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &door{bodies: newBodies()}
		rest, stop := io.Pipe() // never sends a byte
		var gone atomic.Int64
		const slow = 100
		for range slow {
			go func() {
				if d.read("greedy", maxBody, rest) != nil {
					gone.Add(1)
				}
			}()
		}
		synctest.Wait()
		for _, size := range []int64{maxBody, -1} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			whole := make(chan error, 1)
			go func() { whole <- d.read("second", size, bytes.NewReader(make([]byte, maxBody))) }()
			select {
			case err := <-whole:
				if err != nil {
					t.Errorf("a body of %d bytes of another caller: %v", size, err)
				}
			case <-ctx.Done():
				t.Errorf("a body of %d bytes of another caller waits", size)
			}
			cancel()
		}
		// A body that gets no room within roomWithin is given up.
		time.Sleep(roomWithin)
		synctest.Wait()
		if want := int64(slow - maxCallerBodies/maxBody); gone.Load() != want {
			t.Errorf("%d bodies were given up after %s, want %d", gone.Load(), roomWithin, want)
		}
		_ = stop.CloseWithError(errors.New("gone"))
		synctest.Wait()
		if gone.Load() != slow || len(d.callers.of) != 0 || !d.bodies.room.TryAcquire(maxBodies) {
			t.Errorf("%d of %d bodies have ended, %d callers are counted", gone.Load(), slow, len(d.callers.of))
		}
	})
}

// A body of unknown size first takes the room of the largest body. When it is complete, it
// keeps only the room of its own size.
func TestABodyKeepsTheRoomOfItsBytesOnly(t *testing.T) {
	d := &door{bodies: newBodies()}
	for range 2 * maxCallerBodies / maxBody {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", io.MultiReader(bytes.NewReader([]byte("{}"))))
		r, release := d.bodies.guard(httptest.NewRecorder(), r)
		defer release()
		done, err := d.callers.admit(r.Context(), host.Caller{})
		if err != nil {
			t.Fatal(err)
		}
		defer done()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if b, ok := r.Body.(*guardedBody); ok {
			b.ctx = ctx
		}
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAWebSocketIsHeldUntilItEnds(t *testing.T) {
	var all callers
	caller := host.Caller{Principal: "ada"}
	held := make(chan struct{})
	ended := make(chan struct{})
	opened := make(chan error)
	h := all.connected(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		release, err := all.admit(r.Context(), caller)
		if err == nil {
			release()
		}
		opened <- err
		<-held
	}))
	for range maxInWork {
		go func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
			ended <- struct{}{}
		}()
		if err := <-opened; err != nil {
			t.Fatal(err)
		}
	}
	var known *session.Error
	if _, err := all.admit(t.Context(), caller); !errors.As(err, &known) || known.Code != session.Busy {
		t.Errorf("one more: %v, want it refused as busy", err)
	}
	if _, err := all.admit(t.Context(), host.Caller{Principal: "eve"}); err != nil {
		t.Errorf("another caller: %v", err)
	}
	close(held)
	for range maxInWork {
		<-ended
	}
	if release, err := all.admit(t.Context(), caller); err != nil {
		t.Errorf("after their ends: %v", err)
	} else {
		release()
	}
}
