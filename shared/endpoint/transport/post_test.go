package transport_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// A response within the window is JSON. One that takes longer is a stream, which the first
// message before it begins at once.
func TestFormOfAResponse(t *testing.T) {
	long := strings.Repeat("long ", 20_000) // more than a stream keeps a buffer for
	for name, tt := range map[string]struct {
		before, after time.Duration // it says something, and ends
		says          []string
		began         time.Duration // of a stream; 0: it is JSON
	}{
		"within the window": {0, 900 * time.Millisecond, nil, 0},
		"after the window":  {0, 3 * time.Second, nil, 1100 * time.Millisecond},
		"with a message":    {100 * time.Millisecond, 100 * time.Millisecond, []string{said(long)}, 100 * time.Millisecond},
	} {
		in(t, name, bubble, func(t *testing.T, w *world) {
			w.backend.tool("any", func(r run) {
				if time.Sleep(tt.before); tt.says != nil {
					r.say(long)
				}
				time.Sleep(tt.after)
				r.end(`{}`)
			})
			a := w.visit("quiet").call("any")
			if tt.began > 0 {
				commontest.Same(t, append(tt.says, resultOf(`{}`)), a.datas(t))
				commontest.EqualIn(t, "it began after", tt.began, a.flush[0].at)
			} else {
				commontest.Equal(t, resultOf(`{}`), a.body)
			}
			commontest.EqualIn(t, "it took", tt.before+tt.after, a.took)
		})
	}
}

func TestSlowBatchIsAStreamThatEndsAfterItsLastResponse(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.backend.tool("three", func(r run) {
			for i, id := range []string{"3", "2", "1"} {
				time.Sleep(800 * time.Millisecond)
				r.append(`{"jsonrpc":"2.0","id":`+id+`,"result":{}}`, i == 2)
			}
		})
		c := w.visit("quiet")
		c.version = ""
		a := c.post("[" + callOf("three") + `,{"jsonrpc":"2.0","id":2,"method":"m"},{"jsonrpc":"2.0","id":3,"method":"m"}]`)
		var want []string
		for _, id := range []string{"3", "2", "1"} {
			want = append(want, `{"jsonrpc":"2.0","id":`+id+`,"result":{}}`)
		}
		if diff := cmp.Diff(want, a.datas(t)); diff != "" || a.took != 2400*time.Millisecond {
			t.Errorf("took %s: %s", a.took, diff)
		}
	})
}

func TestMessageReachesTheServerByteForByte(t *testing.T) {
	w := newWorld(t)
	c := w.visit("quiet")
	body := "{ \"jsonrpc\":\"2.0\", \"id\":9007199254740993,\n\"method\":\"x/y\",\"params\":{\"n\":1e400,\"u\":\"\\u00e9é\"},\"extra\":[] }"
	c.post(" " + body + "\n")
	commontest.EqualIn(t, "the server got", body, w.backend.got[len(w.backend.got)-1])
}

func TestCodesOfTheCoreAsTheClientSeesThem(t *testing.T) {
	retry, none := "1", ""
	for _, tt := range []struct {
		err    error
		status int
		code   wire.Code
		retry  string
	}{
		{storage.Errorf(storage.Invalid, "said why"), 400, wire.CodeInvalidRequest, none},
		{storage.Errorf(storage.Duplicate, "said why"), 409, wire.CodeInvalidRequest, none},
		{storage.Errorf(storage.TooLarge, "said why"), 413, wire.CodeInvalidRequest, none},
		{storage.Errorf(storage.Conflict, "said why"), 503, wire.CodeServer, retry},
		{storage.Errorf(storage.Fenced, "said why"), 503, wire.CodeServer, retry},
		{storage.Errorf(storage.Internal, "said why"), 500, wire.CodeInternal, none},
		{storage.Errorf(storage.Unknown, "said why"), 500, wire.CodeOutcomeUnknown, none},
		{storage.NotFound, 404, wire.CodeSessionNotFound, none},
		{errors.New("said why"), 500, wire.CodeInternal, none},
		{context.DeadlineExceeded, 500, wire.CodeOutcomeUnknown, none},
		{storage.Errorf(storage.Unavailable, "said why").Because(&wire.Error{Code: wire.CodeParse, Message: "secret"}), 503, wire.CodeServer, retry},
	} {
		w := newWorld(t)
		c := w.visit("quiet")
		w.backend.err = tt.err
		a := c.call("x")
		a.is(t, tt.err.Error(), tt.status, tt.code)
		readable(t, a)
		if a.header.Get("Retry-After") != tt.retry || !strings.Contains(a.body, `"id":1`) || strings.Contains(a.body, "secret") {
			t.Errorf("%v: got %s, Retry-After %q", tt.err, a.body, a.header.Get("Retry-After"))
		}
		var known *storage.Error
		if _, message := a.rpcError(t); errors.As(tt.err, &known) && (known.Code == storage.Internal) == (message == "said why") {
			t.Errorf("%v: the client was told %q", tt.err, message)
		}
	}
}

func TestNoRoomIsAToolErrorToACallAndAnErrorToOtherRequests(t *testing.T) {
	w := newWorld(t)
	c := w.visit("quiet")
	w.backend.err = storage.Errorf(storage.Busy, "no room")
	want := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"no room"}],"isError":true,"_meta":{"dormouse/limit":{"kind":"room","retryAfterSeconds":1}}}}`
	if a := c.call("x"); a.status != 200 || a.body != want {
		t.Errorf("got %d %s", a.status, a.body)
	}
	a := c.post(`{"jsonrpc":"2.0","id":2,"method":"prompts/list"}`)
	if code, message := a.rpcError(t); a.status != 200 || wire.Code(code) != wire.CodeServer || message != "no room" || !strings.Contains(a.body, `"retryAfterSeconds":1`) {
		t.Errorf("got %d %s", a.status, a.body)
	}
	w.opts.Admit = func(context.Context, sessions.Caller) (func(), error) { return nil, w.backend.err }
	w.taken()
	c.call("x").is(t, "a call that is not admitted", 429, wire.CodeServer)
	w.silent()
}

// The stream begins when somebody has the request. If nobody takes it, it is refused.
func TestStreamBeginsOnlyAfterTheRequestWasAccepted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		begun, patience := time.Now(), 5*time.Second
		w.backend.tool("slow", func(r run) { time.Sleep(8 * time.Second); r.end(`{}`) })
		w.backend.tool("hang", func(run) {})
		w.backend.tend = func() (sessions.Status, error) {
			return sessions.Status{Accepted: time.Since(begun) > patience, Next: time.Now().Add(time.Second)}, nil
		}
		if a := c.call("slow"); len(a.datas(t)) != 1 || a.flush[0].at < patience {
			t.Errorf("began after %s", a.flush[0].at)
		}
		patience = time.Hour
		a := c.call("hang")
		a.is(t, "nobody takes it", 503, 0)
		if !strings.Contains(a.body, `"id":1`) || a.took < 20*time.Second || a.took > 30*time.Second {
			t.Errorf("after %s: got %s", a.took, a.body)
		}
	})
}

// A response ends in good order before the function that sends it.
func TestResponseEndsBeforeItsFunction(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		c.version = wire.V20250618
		w.backend.tool("hang", func(run) {})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if a := w.do(c.request("POST", callOf("hang")).WithContext(ctx)); a.took != 28*time.Second || len(a.datas(t)) != 0 {
			t.Errorf("it took %s: %s", a.took, a.body)
		}
	})
}

func TestPanicIsAnsweredAndLogged(t *testing.T) {
	w := newWorld(t)
	w.opts.Servers = func(string) (sessions.Server, bool) { panic("secret detail") }
	a := w.do(request("POST", "/quiet/mcp", initialize))
	if code, _ := a.rpcError(t); a.status != 500 || code != int(wire.CodeInternal) || strings.Contains(a.body, "secret") {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if line := w.logged.String(); !strings.Contains(line, "secret detail") || !strings.Contains(line, `"level":"ERROR"`) || !strings.Contains(line, "stack") {
		t.Errorf("logged %s", line)
	}
}

func TestPanicInAStreamBreaksItOff(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		w.backend.tool("slow", func(r run) {
			r.say("half")
			time.Sleep(time.Second)
			w.fail(func(func() error) error { panic("secret detail") }, "")
			r.say("more") // wakes the handler, which reads again
		})
		defer func() {
			if fault := recover(); fault != http.ErrAbortHandler { //nolint:errorlint // a panic carries the very value
				t.Errorf("panicked with %v", fault)
			}
			commontest.Contains(t, "logged", "secret detail", w.logged.String())
		}()
		c.call("slow")
	})
}
