package sessions_test

import (
	"context"
	"encoding/json"
	"strings"
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

// A store that was restored from a backup has lost the last events of a call. A client that has read
// them gets an error, whether the call waits for it or has been ended meanwhile, and at whatever index.
func TestAClientThatHasReadFurtherThanTheLogGetsAnError(t *testing.T) {
	const unknown = `{"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"the box is gone"}}`
	for name, tt := range map[string]struct {
		read storage.Index // by the client; the backup has the first two events
		end  string        // that the sweep has written behind them
		want string
	}{
		"suspended":                     {4, "", `"code":-32010`},
		"ended":                         {5, unknown, unknown},
		"ended where its client is":     {3, unknown, unknown},
		"ended, and its client has all": {3, `{"jsonrpc":"2.0","id":1,"result":{}}`, ""},
		"not further":                   {2, "", ""},
	} {
		lose := func(t *testing.T, store storage.Store, s storage.Session) storage.EventID {
			t.Helper()
			a := storage.Address{Session: s.ID, Stream: storage.NewStreamID(), Box: s.Box(), Requests: []json.RawMessage{json.RawMessage("1")}}
			commontest.OK(t, store.Append(t.Context(), batchOf(a, 1, `"a"`, `"b"`)))
			_, err := store.PutItem(t.Context(), storage.Item{Box: a.Box, ID: a.Stream, State: storage.Suspended, Address: a, NotAfter: time.Now().Add(time.Hour), Created: time.Now()})
			commontest.OK(t, err)
			if tt.end != "" {
				b := batchOf(a, 3, tt.end)
				b.Final = true
				commontest.OK(t, store.Append(t.Context(), b))
			}
			return storage.EventID{Stream: a.Stream, Index: tt.read}
		}
		gets := func(t *testing.T, got string) {
			t.Helper()
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("the client gets %q, want %q", got, tt.want)
			}
		}
		t.Run(name, func(t *testing.T) {
			h, store, id := listening(t)
			call, err := h.Listen(t.Context(), someone, id, lose(t, store, record(t, store, id)).String())
			commontest.OK(t, err)
			gets(t, next(t, call, 0))
		})
	}
}

func TestAClientThatComesBackJustAsItsCallEndsGetsTheResult(t *testing.T) {
	_, store, id := listening(t)
	stream := storage.NewStreamID()
	h := sessions.New(store, endsMeanwhile{end: func() {
		commontest.Check(t, store.Append(t.Context(), storage.Batch{
			Session: id, Stream: stream, First: 1, Gen: 1, Seq: 1, Final: true, Events: [][]byte{[]byte("the result")}, Expires: time.Now().Add(time.Hour),
		}))
	}}, sessions.Limits{})
	call, err := h.Listen(t.Context(), someone, id, storage.EventID{Stream: stream}.String())
	commontest.OK(t, err)
	if call.Done() {
		t.Fatal("the client is told that nothing more comes, and has no result")
	}
	commontest.EqualIn(t, "the client gets", "the result", next(t, call, time.Second))
}
