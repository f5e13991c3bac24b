package host_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/mcp/host"
)

func TestAStreamThatHasEndedAndIsGoneEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, store, id := listening(t)
		stream := session.NewStreamID()
		for i, raw := range []string{"1", "2"} {
			err := store.Append(t.Context(), session.Batch{
				Session: id, Stream: stream, First: session.Index(i + 1), Gen: 1, Seq: int64(i + 1), Final: i == 1,
				Events: [][]byte{[]byte(raw)}, Expires: time.Now().Add(time.Hour),
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			after session.Index
			age   time.Duration
			got   string
		}{{1, 0, "2"}, {2, 0, ""}, {9, 0, ""}, {0, 2 * time.Hour, ""}, {1, 0, ""}, {2, 0, ""}} {
			time.Sleep(c.age)
			begun := time.Now()
			call, err := h.Resume(t.Context(), someone, id, session.EventID{Stream: stream, Index: c.after}.String())
			if err != nil {
				t.Fatal(err)
			}
			got := next(t, call, 25*time.Second)
			if got != c.got || !call.Done() || time.Since(begun) > 0 {
				t.Errorf("after %d: got %q, done %t after %s; want %q and the end at once", c.after, got, call.Done(), time.Since(begun), c.got)
			}
		}
	})
}

func TestAStreamOfWhichNothingIsThereEndsAtOnce(t *testing.T) {
	h, _, id := listening(t)
	call, err := h.Resume(t.Context(), someone, id, "7/"+string(session.NewStreamID()))
	if err != nil || !call.Done() {
		t.Errorf("done %t, %v", call != nil && call.Done(), err)
	}
}

// endsMeanwhile executes nothing any more. Its one call ends just before it is asked for it.
type endsMeanwhile struct {
	nobody
	end func()
}

func (b endsMeanwhile) Track(context.Context, session.Session, session.StreamID) (host.Tracker, error) {
	b.end()
	return nil, session.Errorf(session.NotFound, "there is no trace of the request")
}

func TestAClientThatComesBackJustAsItsCallEndsGetsTheResult(t *testing.T) {
	_, store, id := listening(t)
	stream := session.NewStreamID()
	h := host.New(store, endsMeanwhile{end: func() {
		if err := store.Append(t.Context(), session.Batch{
			Session: id, Stream: stream, First: 1, Gen: 1, Seq: 1, Final: true, Events: [][]byte{[]byte("the result")}, Expires: time.Now().Add(time.Hour),
		}); err != nil {
			t.Error(err)
		}
	}}, host.Limits{})
	call, err := h.Resume(t.Context(), someone, id, session.EventID{Stream: stream}.String())
	if err != nil {
		t.Fatal(err)
	}
	if call.Done() {
		t.Fatal("the client is told that nothing more comes, and has no result")
	}
	if got := next(t, call, time.Second); got != "the result" {
		t.Errorf("the client gets %q", got)
	}
}
