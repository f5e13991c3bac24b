package transport_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

func TestNothingToAnswerIs202WithoutABody(t *testing.T) {
	w := newWorld(t)
	c := w.visit("quiet")
	tests := map[string]string{
		"notification":       `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		"response":           `{"jsonrpc":"2.0","id":"q","result":{}}`,
		"error without id":   `{"jsonrpc":"2.0","error":{"code":1,"message":"m"}}`,
		"initialized, again": initialized,
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) {
			got := c.post(body)
			if got.status != 202 || got.body != "" || got.header.Get("Content-Type") != "" {
				t.Errorf("%s: got %d %q %v", name, got.status, got.body, got.header)
			}
		})
	}
	c.version = ""
	if got := c.post("[" + tests["notification"] + "," + tests["response"] + "]"); got.status != 202 || got.body != "" {
		t.Errorf("batch: got %d %q", got.status, got.body)
	}
}

// A response within the window is JSON. One that takes longer is a stream, which the first
// message before it begins at once.
func TestFormOfAResponse(t *testing.T) {
	const big = `{"big":9007199254740993}`
	for name, tt := range map[string]struct {
		before, after time.Duration // it says something, and ends
		says          []string
		began, took   time.Duration // of a stream; 0: it is JSON
	}{
		"within the window": {0, 900 * time.Millisecond, nil, 0, 900 * time.Millisecond},
		"after the window":  {0, 3 * time.Second, nil, 1100 * time.Millisecond, 3 * time.Second},
		"with a message":    {100 * time.Millisecond, 100 * time.Millisecond, []string{said("half")}, 100 * time.Millisecond, 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.backend.tool("any", func(r run) {
					if time.Sleep(tt.before); tt.says != nil {
						r.say("half")
					}
					time.Sleep(tt.after)
					r.end(big)
				})
				a := w.visit("quiet").call("any")
				want := map[string]string{"Content-Type": wire.MediaJSON, sessionIs: ""}
				if tt.began > 0 {
					want = map[string]string{"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no", sessionIs: ""}
					commontest.Same(t, append(tt.says, resultOf(big)), a.datas(t))
					if a.flush[0].at != tt.began {
						t.Errorf("began after %s", a.flush[0].at)
					}
				} else if a.body != resultOf(big) {
					t.Errorf("got %s", a.body)
				}
				for header, value := range want {
					if got := a.header.Get(header); got != value {
						t.Errorf("%s: %q, want %q", header, got, value)
					}
				}
				if a.status != http.StatusOK || a.took != tt.took {
					t.Errorf("%d after %s", a.status, a.took)
				}
			})
		})
	}
}

func TestBatchIsAnsweredAsAnArray(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.backend.tool("two", func(r run) {
			time.Sleep(100 * time.Millisecond)
			r.append(`{"jsonrpc":"2.0","id":"b","result":{}}`, false)
			time.Sleep(100 * time.Millisecond)
			r.append(`{"jsonrpc":"2.0","id":1,"result":{}}`, true)
		})
		c := w.visit("quiet")
		for _, c.version = range []string{"", wire.V20250326} {
			a := c.post("[" + callOf("two") + `,{"jsonrpc":"2.0","id":"b","method":"tools/list"},{"jsonrpc":"2.0","method":"notifications/x"}]`)
			if want := `[{"jsonrpc":"2.0","id":"b","result":{}},{"jsonrpc":"2.0","id":1,"result":{}}]`; a.status != 200 || a.body != want {
				t.Errorf("version %q: got %d %s", c.version, a.status, a.body)
			}
		}
	})
}

func TestBatchOfOneIsAnsweredAsAnArray(t *testing.T) {
	c := newWorld(t).visit("quiet")
	c.version = ""
	tests := map[string]string{
		"[" + callOf("any") + "]":                    `[{"jsonrpc":"2.0","id":1,"result":{"content":[]}}]`,
		`[{"jsonrpc":"2.0","id":4,"method":"ping"}]`: `[{"jsonrpc":"2.0","id":4,"result":{}}]`,
	}
	for body, want := range tests {
		if a := c.post(body); a.status != 200 || a.body != want {
			t.Errorf("%s: got %d %s", body, a.status, a.body)
		}
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

func TestPingIsAnsweredInPlace(t *testing.T) {
	w := newWorld(t)
	c := w.visit("quiet")
	before := len(w.backend.got)
	a := c.post(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
	if a.status != 200 || a.body != `{"jsonrpc":"2.0","id":"p","result":{}}` || len(w.backend.got) != before {
		t.Errorf("got %d %s, the server got %v", a.status, a.body, w.backend.got[before:])
	}
}

func TestMessageReachesTheServerByteForByte(t *testing.T) {
	w := newWorld(t)
	c := w.visit("quiet")
	body := "{ \"jsonrpc\":\"2.0\", \"id\":9007199254740993,\n\"method\":\"x/y\",\"params\":{\"n\":1e400,\"u\":\"\\u00e9é\"},\"extra\":[] }"
	c.post(" " + body + "\n")
	commontest.EqualIn(t, "the server got", body, w.backend.got[len(w.backend.got)-1])
}

func TestSessionIsNothingToAnotherPrincipalOrServer(t *testing.T) {
	w := newWorld(t)
	c := w.visit("quiet")
	for _, method := range []string{"POST", "GET", "DELETE"} {
		stranger := w.do(c.request(method, callOf("x"), "Authorization", "Bearer mallory"))
		elsewhere := *c
		elsewhere.path = "/pushy/mcp"
		other := w.do(elsewhere.request(method, callOf("x")))
		if stranger.status != 404 || other.status != 404 || stranger.body != other.body {
			t.Errorf("%s: got %d %s and %d %s", method, stranger.status, stranger.body, other.status, other.body)
		}
	}
}

func TestCodesOfTheCoreAsTheClientSeesThem(t *testing.T) {
	tests := []struct {
		err    error
		status int
		code   wire.Code
		retry  string
	}{
		{storage.Errorf(storage.Invalid, "said why"), 400, wire.CodeInvalidRequest, ""},
		{storage.Errorf(storage.NotFound, "said why"), 404, wire.CodeSessionNotFound, ""},
		{storage.Errorf(storage.Duplicate, "said why"), 409, wire.CodeInvalidRequest, ""},
		{storage.Errorf(storage.TooLarge, "said why"), 413, wire.CodeInvalidRequest, ""},
		{storage.Errorf(storage.Unavailable, "said why"), 503, wire.CodeServer, "1"},
		{storage.Errorf(storage.Conflict, "said why"), 503, wire.CodeServer, "1"},
		{storage.Errorf(storage.Fenced, "said why"), 503, wire.CodeServer, "1"},
		{&storage.EventIDError{Part: "index", ID: "x"}, 400, wire.CodeInvalidRequest, ""},
		{storage.NotFound, 404, wire.CodeSessionNotFound, ""},
		{storage.Errorf(storage.Internal, "said why"), 500, wire.CodeInternal, ""},
		{errors.New("said why"), 500, wire.CodeInternal, ""},
		{storage.Unavailable, 503, wire.CodeServer, "1"},
		{context.DeadlineExceeded, 500, wire.CodeOutcomeUnknown, ""},
		{storage.Errorf(storage.Unknown, "said why"), 500, wire.CodeOutcomeUnknown, ""},
		{storage.Errorf(storage.Unavailable, "said why").Because(&wire.Error{Code: wire.CodeParse, Message: "secret"}), 503, wire.CodeServer, "1"},
	}
	for _, tt := range tests {
		w := newWorld(t)
		c := w.visit("quiet")
		w.backend.err = tt.err
		a := c.call("x")
		_, message := a.rpcError(t)
		if a.status != tt.status || readable(t, a) != tt.code || a.header.Get("Retry-After") != tt.retry || !strings.Contains(a.body, `"id":1`) {
			t.Errorf("%v: got %d %s, Retry-After %q", tt.err, a.status, a.body, a.header.Get("Retry-After"))
		}
		var known *storage.Error
		if errors.As(tt.err, &known) && (known.Code == storage.Internal) == (message == "said why") {
			t.Errorf("%v: the client was told %q", tt.err, message)
		}
		if strings.Contains(a.body, "secret") {
			t.Errorf("the cause came out: %s", a.body)
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
}

func TestRequestWithoutASignOfLifeIsNotAccepted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		w.backend.tool("hang", func(run) {})
		w.backend.tend = func() (sessions.Status, error) { return sessions.Status{Next: time.Now().Add(time.Second)}, nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		a := w.do(c.request("POST", callOf("hang")).WithContext(ctx))
		if a.status != 503 || !strings.Contains(a.body, `"id":1`) || a.took < 25*time.Second || a.took > 30*time.Second {
			t.Errorf("after %s: got %d %s", a.took, a.status, a.body)
		}
	})
}

func TestStreamBeginsOnlyAfterTheRequestWasAccepted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		begun := time.Now()
		w.backend.tool("slow", func(r run) { time.Sleep(8 * time.Second); r.end(`{}`) })
		w.backend.tend = func() (sessions.Status, error) {
			return sessions.Status{Accepted: time.Since(begun) > 5*time.Second, Next: time.Now().Add(time.Second)}, nil
		}
		if a := c.call("slow"); len(a.datas(t)) != 1 || a.flush[0].at < 5*time.Second {
			t.Errorf("began after %s", a.flush[0].at)
		}
	})
}

func TestHoldOfAResponse(t *testing.T) {
	tests := []struct {
		version string
		want    time.Duration
	}{
		{wire.V20251125, 25 * time.Second},
		{wire.V20250618, 14 * time.Minute},
		{wire.V20250326, 14 * time.Minute},
		{"", 14 * time.Minute},
	}
	for _, tt := range tests {
		t.Run(tt.version, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				c := w.visit("quiet")
				c.version = tt.version
				w.backend.tool("hang", func(run) {})
				if a := c.call("hang"); a.took != tt.want || len(a.datas(t)) != 0 {
					t.Errorf("took %s, want %s", a.took, tt.want)
				}
			})
		})
	}
}

func TestHoldEndsBeforeTheFunctionDoes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		c.version = ""
		w.backend.tool("hang", func(run) {})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		a := w.do(c.request("POST", callOf("hang")).WithContext(ctx))
		if a.took != 28*time.Second || len(a.datas(t)) != 0 {
			t.Errorf("took %s: %s", a.took, a.body)
		}
	})
}

func TestKeepAlive(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		c.version = ""
		w.backend.tool("slow", func(r run) {
			time.Sleep(40 * time.Second)
			r.say("half")
			time.Sleep(20 * time.Second)
			r.end(`{}`)
		})
		a := c.call("slow")
		var at []time.Duration
		for _, f := range a.flush {
			if f.text == ": keep-alive\n" {
				at = append(at, f.at)
			}
		}
		// Comments come every 15 s from the beginning of the stream, and again from the
		// event at 40 s.
		const first = 1100 * time.Millisecond
		if want := []time.Duration{first + 15*time.Second, first + 30*time.Second, 55 * time.Second}; !slices.Equal(at, want) {
			t.Errorf("comments at %v, want %v", at, want)
		}
		if len(a.datas(t)) != 2 {
			t.Errorf("got %s", a.body)
		}
	})
}

func TestClientThatGoesLeavesNothingBehind(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		w.backend.tool("hang", func(run) {})
		done := w.begin(c.request("POST", callOf("hang")))
		time.Sleep(5 * time.Second)
		if a := done.gone(); len(a.flush) != 1 || a.took != 5*time.Second {
			t.Errorf("took %s: %s", a.took, a.body)
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
			if !strings.Contains(w.logged.String(), "secret detail") {
				t.Errorf("logged %s", w.logged)
			}
		}()
		c.call("slow")
	})
}
