package transport_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
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

func TestP1EveryStreamBeginsWithAnIDAndEmptyData(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("pushy")
		w.backend.tool("hang", func(run) {})
		w.backend.tool("chatty", func(r run) { r.say("one"); r.end(`{}`) })
		answers := map[string]*answer{"post": c.call("hang"), "post with events": c.call("chatty")}
		answers["resume"] = c.get(answers["post"].lastID(t))
		answers["resume with events"] = c.get(answers["post with events"].events(t)[0].ID)
		answers["resume at the end"] = c.get(answers["post with events"].lastID(t))
		answers["resume of nothing we know"] = c.get("7/" + string(storage.NewStreamID()))
		answers["listen"] = c.get("")
		c.push("two")
		answers["listen with events"] = c.get(answers["listen"].lastID(t))
		for name, a := range answers {
			if e := a.events(t); !isPriming(e[0]) || !strings.HasPrefix(a.flush[0].text, "id: ") || !strings.Contains(a.flush[0].text, "\ndata: \n\n") {
				t.Errorf("%s begins with %q", name, a.flush[0].text)
			}
			for _, e := range a.events(t) { // some clients fail on an event named ping, some drop a message without a name
				if (e.Name == "message") != (len(e.Data) > 0) || e.Name != "" && e.Name != "message" {
					t.Errorf("%s has an event with the wrong name: %+v", name, e)
				}
			}
		}
	})
}

func TestP2TheFirstIDIsAnotherOneOnEveryResponse(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c, last := hang(w)
		seen := map[string]bool{last: true}
		for _, from := range []string{last, ""} {
			for range 8 {
				a := c.get(from)
				from = a.events(t)[0].ID
				if seen[from] {
					t.Fatalf("id %s came twice", from)
				}
				seen[from] = true
				id, err := storage.ParseEventID(from)
				if err != nil || id.Index != 0 {
					t.Errorf("id %s: %v; want cursor 0", from, err)
				}
			}
		}
	})
}

func TestP3PollInTroubleIsToldALongerRetry(t *testing.T) {
	faults := map[string]func(*world){
		"load": func(w *world) { w.down("Load") },
		"tail": func(w *world) { w.down("Tail") },
		"wait": func(w *world) { w.down("Wait") },
		"everything, without a code": func(w *world) {
			w.fail(func(func() error) error { return context.DeadlineExceeded }, "")
		},
		"duty":   func(w *world) { w.backend.attend = storage.Errorf(storage.Unavailable, "no") },
		"quota":  func(w *world) { w.backend.attend = storage.Errorf(storage.Busy, "no") },
		"defect": func(w *world) { w.backend.attend = storage.Errorf(storage.Internal, "no") },
	}
	for name, breaks := range faults {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				c, last := hang(w)
				breaks(w)
				a := c.get(last)
				events := a.events(t)
				if len(events) != 1 || !sendsAway(events[0]) || events[0].Retry != 10*time.Second || events[0].ID == last {
					t.Fatalf("got %+v", events)
				}
				was, _ := storage.ParseEventID(last)
				is, _ := storage.ParseEventID(events[0].ID)
				if is.Nonce = was.Nonce; is != was {
					t.Errorf("the client had %s and was given %s", last, events[0].ID)
				}
				if !strings.Contains(w.logged.String(), `"level":"WARN"`) {
					t.Errorf("logged %s", w.logged)
				}
			})
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

func TestP5IdleListenerPollsMoreAndMoreSeldom(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("pushy")
		last, held := "", time.Duration(0)
		var retries []time.Duration
		begun := time.Now()
		for range 10 {
			a := c.get(last)
			last, held = a.lastID(t), held+a.took
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

func TestP6TheRetryFallsAfterAnEvent(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("pushy")
		last := ""
		for range 3 {
			last = c.get(last).lastID(t)
		}
		done := w.begin(c.request("GET", "", "Last-Event-ID", last))
		time.Sleep(time.Second)
		c.push("at last")
		events := done.end().events(t)
		if len(events) != 3 || events[0].Retry != 0 || events[1].ID == "" || events[1].Retry != 0 || events[2].Retry != 2*time.Second {
			t.Errorf("got %+v", events)
		}
	})
}

// P7: the first event is flushed at once.
func TestP6TheRetryComesWhenTheClientIsSentAway(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c, last := hang(w)
		for _, from := range []string{last, ""} {
			a := c.get(from)
			events := a.events(t)
			if end := events[len(events)-1]; len(events) != 2 || events[0].Retry != 0 || end.Retry == 0 || end.ID != "" || len(end.Data) != 0 {
				t.Errorf("got %+v", events)
			}
			if a.flush[0].at != 0 || a.took < 20*time.Second {
				t.Errorf("flushed after %s of %s", a.flush[0].at, a.took)
			}
		}
	})
}

func TestListenerHearsWhatWasSaidBeforeAndWhileItListens(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("pushy")
		before := strings.Repeat("before ", 20_000) // more than a stream keeps a buffer for
		c.push(before)
		done := w.begin(c.request("GET", ""))
		time.Sleep(5 * time.Second)
		c.push("while")
		a := done.end()
		commontest.Same(t, []string{said(before), said("while")}, a.datas(t))
		if a.flush[1].at != 5*time.Second || a.took != 25*time.Second {
			t.Errorf("flushed after %s, took %s", a.flush[1].at, a.took)
		}
		c.push("after")
		commontest.Same(t, []string{said("after")}, c.get(a.lastID(t)).datas(t))
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

func TestAnAnswerCanBeSentBeforeItsLogLine(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		r := c.request("POST", `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
		rec := newRecorder(r.Context())
		var sent []flush
		w.opts.AnswerFirst, w.opts.Observer = true, func(context.Context, *observe.Event) { sent = rec.flushed }
		w.handler().ServeHTTP(rec, r)
		if len(sent) != 1 || rec.sent.Get("Content-Length") != strconv.Itoa(len(sent[0].text)) {
			t.Errorf("sent before the log line: %v, Content-Length %s", sent, rec.sent.Get("Content-Length"))
		}
	})
}

func TestOneLogLineForEachRequest(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		tests := []struct {
			name string
			do   func() *answer
			want []string
		}{
			{"call", func() *answer {
				return c.post(`{"jsonrpc":"2.0","id":"token-7","method":"tools/call","params":{"name":"look","arguments":{"for":"secret"}}}`)
			}, []string{
				`"principal":"ada"`, `"client":"t"`, `"tool":"look"`, `"outcome":"done"`,
				`"level":"INFO"`, `"msg":"request"`, `"http_method":"POST"`, `"server":"quiet"`, `"status":200`,
				`"rpc_method":"tools/call"`, `"rpc_id":"string"`, `"session_id":"` + c.session + `"`, `"duration_ms":0`,
			}},
			{"notification", func() *answer { return c.post(`{"jsonrpc":"2.0","method":"notifications/secret"}`) }, []string{`"status":202`, `"rpc_id":"none"`}},
			{"refused", func() *answer { return c.post(`{"jsonrpc":"2.0","id":7}`) }, []string{`"level":"WARN"`, `"status":400`, `"code":"invalid"`, `"rpc_id":"number"`}},
			{"store", func() *answer {
				w.down("")
				defer w.down()
				return c.call("look")
			}, []string{`"tool":"look"`, `"outcome":"failed"`, `"why":"the store does not answer; try again"`, `"level":"ERROR"`, `"status":503`, `"code":"unavailable"`, "disk on fire"}},
			{"long method", func() *answer { return c.post(`{"jsonrpc":"2.0","id":7,"method":"` + strings.Repeat("m", 100) + `"}`) }, []string{
				`"rpc_method":"` + strings.Repeat("m", 64) + `… (100 bytes)"`,
			}},
		}
		for _, tt := range tests {
			w.logged.Reset()
			tt.do()
			line := w.logged.String()
			for _, want := range tt.want {
				if !strings.Contains(line, want) {
					t.Errorf("%s: %s is not in %s", tt.name, want, line)
				}
			}
			if strings.Count(line, "\n") != 1 || strings.Contains(line, "token-7") || strings.Contains(line, `"secret"`) {
				t.Errorf("%s: logged %s", tt.name, line)
			}
		}
	})
}
