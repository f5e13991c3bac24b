package sessions_test

import (
	"context"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

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
