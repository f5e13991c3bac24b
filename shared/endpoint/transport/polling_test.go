package transport_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// hang starts a call that never ends. It returns its client, after the response to it has
// ended, and the last event id.
func hang(w *world) (c *client, last string) {
	c = w.visit("pushy")
	w.backend.tool("hang", func(run) {})
	return c, c.call("hang").lastID(w.t)
}

func isPriming(e wire.SSE) bool {
	return e.ID != "" && e.Retry == 0 && e.HasData && len(e.Data) == 0 && e.Name == ""
}

// sendsAway reports whether an event ends a response early: it has a cursor and a retry.
func sendsAway(e wire.SSE) bool {
	retry := e.Retry
	e.Retry = 0
	return retry > 0 && isPriming(e)
}

// The store may fail without a code, and the backend for reasons of its own.
func TestP3PollInTroubleIsToldALongerRetry(t *testing.T) {
	faults := map[string]func(*world){
		"everything, without a code": func(w *world) {
			w.fail(func(func() error) error { return context.DeadlineExceeded }, "")
		},
		"duty":   func(w *world) { w.backend.attend = storage.Errorf(storage.Unavailable, "no") },
		"quota":  func(w *world) { w.backend.attend = storage.Errorf(storage.Busy, "no") },
		"defect": func(w *world) { w.backend.attend = storage.Errorf(storage.Internal, "no") },
	}
	for name, breaks := range faults {
		in(t, name, bubble, func(t *testing.T, w *world) {
			c, last := hang(w)
			breaks(w)
			a := c.get(last)
			toldToWait(t, a)
			was, _ := storage.ParseEventID(last)
			is, _ := storage.ParseEventID(a.lastID(t))
			if is.Nonce = was.Nonce; is != was || a.lastID(t) == last {
				t.Errorf("the client had %s and was given %s", last, a.lastID(t))
			}
		})
	}
}

func TestP4PollsOfAnHourLongCallAreFew(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		w.backend.tool("long", func(r run) { time.Sleep(time.Hour); r.end(`{}`) })
		a := c.call("long")
		polls := 0
		for ; len(a.datas(t)) == 0; polls++ {
			events := a.events(t)
			time.Sleep(events[len(events)-1].Retry)
			a = c.get(a.lastID(t))
		}
		if polls > 300 {
			t.Errorf("%d polls", polls)
		}
	})
}

// P7: the first event is flushed at once.
func TestP5IdleListenerPollsMoreAndMoreSeldom(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("pushy")
		last, held := "", time.Duration(0)
		var retries []time.Duration
		begun := time.Now()
		for range 10 {
			a := c.get(last)
			last, held = a.lastID(t), held+a.took
			commontest.EqualIn(t, "flushed after", 0, a.flush[0].at)
			retries = append(retries, a.retry(t))
			time.Sleep(retries[len(retries)-1])
		}
		if !slices.IsSorted(retries) || retries[0] != 2*time.Second || retries[9] != time.Minute {
			t.Errorf("retries %v", retries)
		}
		if held > 2*time.Minute {
			t.Errorf("held for %s of %s", held, time.Since(begun))
		}
	})
}

func TestLostEventsAreToldOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("pushy")
		for i := range 3 {
			batch := storage.Batch{
				Session: storage.ID(c.session), First: storage.Index(i + 1), Gen: 1, Seq: int64(i + 1),
				Events: [][]byte{[]byte(said(strconv.Itoa(i + 1)))}, Expires: time.Now().Add(time.Hour * time.Duration(1+i)),
			}
			commontest.OK(t, w.store.Append(t.Context(), batch))
		}
		time.Sleep(90 * time.Minute)
		a := c.get("0")
		datas := a.datas(t)
		if len(datas) != 3 || !strings.Contains(datas[0], "events were lost") || datas[1] != said("2") || datas[2] != said("3") {
			t.Errorf("got %s", a.body)
		}
		if again := c.get(a.events(t)[0].ID); slices.ContainsFunc(again.datas(t), func(d string) bool { return strings.Contains(d, "lost") }) {
			t.Errorf("told again: %s", again.body)
		}
	})
}

func TestLogLineOfARequestHasNothingOfItsBody(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		for _, tt := range []struct{ body, down, want string }{ // down is a method of the store
			{
				`{"jsonrpc":"2.0","id":"token-7","method":"tools/call","params":{"name":"look","arguments":{"for":"secret"}}}`, "none",
				`"level":"INFO" "http_method":"POST" "status":200 "rpc_method":"tools/call" "rpc_id":"string" "session_id":"` + c.session + `"`,
			},
			{`{"jsonrpc":"2.0","id":7}`, "none", `"level":"WARN" "status":400 "code":"invalid" "rpc_id":"number"`},
			{callOf("look"), "", `"level":"ERROR" "status":503 "code":"unavailable" disk`},
		} {
			w.logged.Take()
			w.down(tt.down)
			c.post(tt.body)
			w.down()
			line := w.logged.String()
			for part := range strings.FieldsSeq(tt.want) {
				commontest.Contains(t, tt.body, part, line)
			}
			if strings.Count(line, "\n") != 1 || strings.Contains(line, "token-7") || strings.Contains(line, `"secret"`) {
				t.Errorf("%s: logged %s", tt.body, line)
			}
		}
	})
}

// A server that closes the stream before any message does not get a JSON answer, even if
// the result follows within the window.
func TestACloseIsNeverAPlainAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("pushy")
		w.backend.tool("closing", func(r run) { r.pause("", 3*time.Second); r.end(`{}`) })
		a := c.call("closing") // get fails if it has no events
		commontest.SameIn(t, "the rest", []string{resultOf(`{}`)}, c.get(a.lastID(t)).datas(t))
	})
}
