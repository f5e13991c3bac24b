package local

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
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
	done, err := d.callers.admit(r.Context(), sessions.Caller{Identity: storage.Identity{Tenant: "default", Principal: who}})
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
		commontest.EqualIn(t, "bodies that were given up", int64(slow-maxCallerBodies/maxBody), gone.Load())
		_ = stop.CloseWithError(errors.New("gone"))
		synctest.Wait()
		if gone.Load() != slow || len(d.callers.of) != 0 || !d.bodies.room.TryAcquire(maxBodies) {
			t.Errorf("%d of %d bodies have ended, %d callers are counted", gone.Load(), slow, len(d.callers.of))
		}
	})
}

func TestRoomThatOneOfTwoRefusesIsGivenBack(t *testing.T) {
	own, all := semaphore.NewWeighted(2), semaphore.NewWeighted(1)
	if (twoRooms{own, all}).TryAcquire(2) || !own.TryAcquire(2) {
		t.Error("a caller lacks room that it does not have")
	}
	own.Release(2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if (twoRooms{own, all}).Acquire(ctx, 2) == nil || !own.TryAcquire(2) {
		t.Error("a caller that has waited lacks room that it does not have")
	}
}

// Strangers begin as many forms as would take the room of all bodies, and send none of
// them. A server says "100 Continue" when it begins to read a body, so it has taken its
// room by then.
func TestFormsOfStrangersLeaveRoomForCallers(t *testing.T) {
	m := started(t, nil)
	at := strings.TrimPrefix(m.public.address(0), "http://")
	for range maxBodies / maxBody {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at)
		commontest.OK(t, err)
		defer func() { _ = conn.Close() }()
		_, err = fmt.Fprintf(conn, "POST /connect HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-www-form-urlencoded\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n", at)
		commontest.OK(t, err)
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, " 100 ") {
			t.Fatalf("the server does not read a form: %q, %v", line, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	largest := `{"jsonrpc":"2.0","method":"ping","id":"` + strings.Repeat("x", 8<<10) + `"}`
	largest += strings.Repeat(" ", maxBody-len(largest))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at+"/counter/mcp", strings.NewReader(largest))
	commontest.OK(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	res, err := http.DefaultClient.Do(r)
	commontest.OKIn(t, "a caller waits for the forms of strangers", err)
	_ = res.Body.Close()
	if res.StatusCode == http.StatusRequestEntityTooLarge || res.StatusCode >= 500 {
		t.Errorf("the largest body of a caller: %s", res.Status)
	}
}

// formsOf serves the forms of strangers on a network of its own. read gets each form, and
// runs while it is answered.
func formsOf(t *testing.T, b bodies, read func(r *http.Request, err error)) *localtest.Pipes {
	forms := b.ofStrangers(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { read(r, r.ParseForm()) }))
	return localtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, release := b.guard(w, r)
		defer release()
		forms.ServeHTTP(w, r)
	}))
}

const formHead = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 3\r\n\r\n"

func TestAFormThatDoesNotComeIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, begun := newBodies(), time.Now()
		given := make(chan error, 1)
		forms := formsOf(t, b, func(_ *http.Request, err error) { given <- err })
		conn, err := forms.Dial(t.Context(), "", "")
		commontest.OK(t, err)
		_, err = io.WriteString(conn, formHead)
		commontest.OK(t, err)
		if err := <-given; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) != formWithin {
			t.Errorf("%v after %s, want it given up after %s", err, time.Since(begun), formWithin)
		}
		_, _ = io.Copy(io.Discard, conn) // until the server closes it
		if !b.room.TryAcquire(maxBodies) || !b.strangers.TryAcquire(maxForms) {
			t.Error("its room is not free")
		}
	})
}

// A handler that answers at once, such as that of /healthz, leaves the body to net/http,
// which waits for it before the connection is free again.
func TestABodyThatDoesNotComeFreesItsConnection(t *testing.T) {
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		status  string
	}{
		"a handler that reads it": {func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); errors.Is(err, os.ErrDeadlineExceeded) {
				w.WriteHeader(http.StatusBadRequest)
			}
		}, " 400 "},
		"a handler that leaves it": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }, " 200 "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, network, begun := &machine{log: slog.New(slog.DiscardHandler)}, localtest.NewPipes(), time.Now()
				m.serve(network, test.handler, nil)
				t.Cleanup(func() { _ = m.closers[0](t.Context()) })
				conn, err := network.Dial(t.Context(), "", "")
				commontest.OK(t, err)
				_, err = io.WriteString(conn, formHead)
				commontest.OK(t, err)
				said, _ := io.ReadAll(conn) // until the server closes it
				if took := time.Since(begun); took != bodyWithin || !strings.Contains(string(said), test.status) {
					t.Errorf("the connection is free after %s, want %s; it said %s", took, bodyWithin, said)
				}
			})
		})
	}
}

// A body of unknown size first takes the room of the largest body. When it is complete, it
// keeps only the room of its own size.
func TestABodyKeepsTheRoomOfItsBytesOnly(t *testing.T) {
	d := &door{bodies: newBodies()}
	for range 2 * maxCallerBodies / maxBody {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", io.MultiReader(bytes.NewReader([]byte("{}"))))
		r, release := d.bodies.guard(httptest.NewRecorder(), r)
		defer release()
		done, err := d.callers.admit(r.Context(), sessions.Caller{})
		commontest.OK(t, err)
		defer done()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if b, ok := r.Body.(*guardedBody); ok {
			b.ctx = ctx
		}
		_, err = io.ReadAll(r.Body)
		commontest.OK(t, err)
	}
}

func TestAWebSocketIsHeldUntilItEnds(t *testing.T) {
	var all callers
	caller := sessions.Caller{Identity: storage.Identity{Principal: "ada"}}
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
		commontest.OK(t, <-opened)
	}
	var limit *storage.Limited
	if _, err := all.admit(t.Context(), caller); !errors.As(err, &limit) || limit.Kind != "concurrent" || storage.CodeOf(err) != storage.Busy {
		t.Errorf("one more: %v, want it refused as busy", err)
	}
	_, err := all.admit(t.Context(), sessions.Caller{Identity: storage.Identity{Principal: "eve"}})
	commontest.CheckIn(t, "another caller", err)
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

// A packed body takes the room of the largest body until it is unpacked, whatever size it
// states. Then it keeps the room of the bytes that it has in memory.
func TestAPackedBodyHasTheRoomOfItsUnpackedBytes(t *testing.T) {
	b := newBodies()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("packed"))
	r.Header.Set("Content-Encoding", "gzip")
	r, release := b.guard(httptest.NewRecorder(), r)
	_, err := io.ReadAll(r.Body)
	commontest.OK(t, err)
	if b.room.TryAcquire(maxBodies - maxBody + 1) {
		t.Fatal("a body that is being unpacked has the room of its packed bytes only")
	}
	unpacked, ok := r.Body.(interface{ Unpacked(bytes int) })
	if !ok {
		t.Fatal("the endpoint cannot say how many bytes it has unpacked")
	}
	unpacked.Unpacked(1000)
	if b.room.TryAcquire(maxBodies-999) || !b.room.TryAcquire(maxBodies-1000) {
		t.Error("the body does not keep the room of its unpacked bytes")
	}
	b.room.Release(maxBodies - 1000)
	if release(); !b.room.TryAcquire(maxBodies) {
		t.Error("its room is not free at the end")
	}
}
