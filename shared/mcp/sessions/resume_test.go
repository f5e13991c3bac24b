package sessions_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

func TestAStreamThatHasEndedAndIsGoneEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, store, id := listening(t)
		stream := storage.NewStreamID()
		for i, raw := range []string{"1", "2"} {
			err := store.Append(t.Context(), storage.Batch{
				Session: id, Stream: stream, First: storage.Index(i + 1), Gen: 1, Seq: int64(i + 1), Final: i == 1,
				Events: [][]byte{[]byte(raw)}, Expires: time.Now().Add(time.Hour),
			})
			commontest.OK(t, err)
		}
		for _, c := range []struct {
			after storage.Index
			age   time.Duration
			got   string
		}{{1, 0, "2"}, {2, 0, ""}, {9, 0, ""}, {0, 2 * time.Hour, ""}, {1, 0, ""}, {2, 0, ""}} {
			time.Sleep(c.age)
			begun := time.Now()
			call, err := h.Resume(t.Context(), someone, id, storage.EventID{Stream: stream, Index: c.after}.String())
			commontest.OK(t, err)
			got := next(t, call, 25*time.Second)
			if got != c.got || !call.Done() || time.Since(begun) > 0 {
				t.Errorf("after %d: got %q, done %t after %s; want %q and the end at once", c.after, got, call.Done(), time.Since(begun), c.got)
			}
		}
	})
}

func TestAStreamOfWhichNothingIsThereEndsAtOnce(t *testing.T) {
	h, _, id := listening(t)
	call, err := h.Resume(t.Context(), someone, id, "7/"+string(storage.NewStreamID()))
	if err != nil || !call.Done() {
		t.Errorf("done %t, %v", call != nil && call.Done(), err)
	}
}

// endsMeanwhile executes nothing any more. Its one call ends just before it is asked for it.
type endsMeanwhile struct {
	nobody
	end func()
}

func (b endsMeanwhile) Track(context.Context, storage.Session, storage.StreamID) (sessions.Tracker, error) {
	b.end()
	return nil, storage.Errorf(storage.NotFound, "there is no trace of the request")
}

func TestAClientThatComesBackJustAsItsCallEndsGetsTheResult(t *testing.T) {
	_, store, id := listening(t)
	stream := storage.NewStreamID()
	h := sessions.New(store, endsMeanwhile{end: func() {
		commontest.Check(t, store.Append(t.Context(), storage.Batch{
			Session: id, Stream: stream, First: 1, Gen: 1, Seq: 1, Final: true, Events: [][]byte{[]byte("the result")}, Expires: time.Now().Add(time.Hour),
		}))
	}}, sessions.Limits{})
	call, err := h.Resume(t.Context(), someone, id, storage.EventID{Stream: stream}.String())
	commontest.OK(t, err)
	if call.Done() {
		t.Fatal("the client is told that nothing more comes, and has no result")
	}
	commontest.EqualIn(t, "the client gets", "the result", next(t, call, time.Second))
}
