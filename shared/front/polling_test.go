package front_test

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// hang starts a call that never ends. It returns its client, after the response to it has
// ended, and the last event id.
func hang(w *world) (c *client, last string) {
	c = w.open("pushy")
	w.backend.tool("hang", func(run) {})
	return c, c.call("hang").lastID(w.t)
}

func isPriming(e wire.SSE) bool {
	return e.ID != "" && e.Retry > 0 && e.HasData && len(e.Data) == 0 && e.Name == ""
}

func TestP1EveryStreamBeginsWithAnIDARetryAndEmptyData(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("pushy")
		w.backend.tool("hang", func(run) {})
		w.backend.tool("chatty", func(r run) { r.say("one"); r.end(`{}`) })
		answers := map[string]*answer{"post": c.call("hang"), "post with events": c.call("chatty")}
		answers["resume"] = c.get(answers["post"].lastID(t))
		answers["resume with events"] = c.get(answers["post with events"].events(t)[0].ID)
		answers["resume at the end"] = c.get(answers["post with events"].lastID(t))
		answers["resume of nothing we know"] = c.get("7/" + string(session.NewStreamID()))
		answers["listen"] = c.get("")
		c.push("two")
		answers["listen with events"] = c.get(answers["listen"].lastID(t))
		for name, a := range answers {
			if e := a.events(t); !isPriming(e[0]) || !strings.HasPrefix(a.flush[0].text, "id: ") || !strings.Contains(a.flush[0].text, "\ndata: \n\n") {
				t.Errorf("%s begins with %q", name, a.flush[0].text)
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
				id, err := session.ParseEventID(from)
				if err != nil || id.Index != 0 {
					t.Errorf("id %s: %v; want cursor 0", from, err)
				}
			}
		}
	})
}

func TestP3PollInTroubleIsToldALongerRetry(t *testing.T) {
	faults := map[string]func(*world){
		"load": func(w *world) { w.store.down("Load") },
		"tail": func(w *world) { w.store.down("Tail") },
		"wait": func(w *world) { w.store.down("Wait") },
		"everything, without a code": func(w *world) {
			w.store.failing(func(string) error { return context.DeadlineExceeded })
		},
		"duty":   func(w *world) { w.backend.attend = session.Errorf(session.Unavailable, "no") },
		"quota":  func(w *world) { w.backend.attend = session.Errorf(session.Busy, "no") },
		"defect": func(w *world) { w.backend.attend = session.Errorf(session.Internal, "no") },
	}
	for name, breaks := range faults {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				c, last := hang(w)
				breaks(w)
				a := c.get(last)
				events := a.events(t)
				if len(events) != 1 || !isPriming(events[0]) || events[0].Retry != 10*time.Second || events[0].ID == last {
					t.Fatalf("got %+v", events)
				}
				was, _ := session.ParseEventID(last)
				is, _ := session.ParseEventID(events[0].ID)
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

func TestP3TroubleLosesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("pushy")
		for i := range 3 {
			c.push(strconv.Itoa(i))
		}
		a := c.get("")
		if diff := cmp.Diff([]string{said("0"), said("1"), said("2")}, a.datas(t)); diff != "" {
			t.Fatal(diff)
		}
		w.store.down("Load")
		a = c.get(a.lastID(t))
		w.store.down()
		c.push("3")
		if diff := cmp.Diff([]string{said("3")}, c.get(a.lastID(t)).datas(t)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestP4PollsOfAnHourLongCallAreFew(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("quiet")
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

func TestP5ListenerWithNothingToHearIsTurnedAway(t *testing.T) {
	w := newWorld(t)
	a := w.open("quiet").get("")
	if a.status != 405 || a.header.Get("Allow") != "POST, DELETE, OPTIONS" {
		t.Errorf("got %d %s, Allow %q", a.status, a.body, a.header.Get("Allow"))
	}
}

func TestP5IdleListenerPollsMoreAndMoreSeldom(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("pushy")
		last, held := "", time.Duration(0)
		var retries []time.Duration
		begun := time.Now()
		for range 10 {
			a := c.get(last)
			last, held = a.lastID(t), held+a.took
			retries = append(retries, a.events(t)[0].Retry)
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

func TestP6TheRetryFallsWithTheFirstEventAfterASilence(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("pushy")
		last := ""
		for range 3 {
			last = c.get(last).lastID(t)
		}
		done := w.start(c.request("GET", "", "Last-Event-ID", last))
		time.Sleep(time.Second)
		c.push("at last")
		events := (<-done).events(t)
		if events[0].Retry != 16*time.Second || events[1].ID == "" || events[1].Retry != 2*time.Second {
			t.Errorf("got %+v", events)
		}
	})
}

func TestP6TheRetryIsSaidAgainWhenTheClientIsSentAway(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c, last := hang(w)
		for _, from := range []string{last, ""} {
			events := c.get(from).events(t)
			if end := events[len(events)-1]; len(events) != 2 || end.Retry != events[0].Retry || end.ID != "" || len(end.Data) != 0 {
				t.Errorf("got %+v", events)
			}
		}
	})
}

func TestP7TheFirstEventIsFlushedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c, last := hang(w)
		for _, from := range []string{last, ""} {
			if a := c.get(from); a.flush[0].at != 0 || a.took < 20*time.Second {
				t.Errorf("flushed after %s of %s", a.flush[0].at, a.took)
			}
		}
	})
}

func TestCutCallGoesOnExactlyWhereTheClientWas(t *testing.T) {
	// The client goes after 0, 1, ... 4 events of the stream.
	want := []string{said("1"), said("2"), said("3"), `{"jsonrpc":"2.0","id":1,"result":{}}`}
	for read := range len(want) + 1 {
		t.Run(strconv.Itoa(read), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				c := w.open("quiet")
				w.backend.tool("steps", func(r run) {
					for i := range 3 {
						time.Sleep(2 * time.Second)
						r.say(strconv.Itoa(i + 1))
					}
					time.Sleep(2 * time.Second)
					r.end(`{}`)
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := w.start(c.request("POST", callOf("steps")).WithContext(ctx))
				time.Sleep(time.Duration(read)*2*time.Second + 1500*time.Millisecond)
				cancel()
				synctest.Wait()
				first := <-done
				time.Sleep(time.Second)
				all := first.datas(t)
				second := c.get(first.lastID(t))
				all = append(all, second.datas(t)...)
				if diff := cmp.Diff(want, all); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				if third := c.get(second.lastID(t)); len(third.datas(t)) != 0 || third.took != 0 {
					t.Errorf("after the end: held for %s with %s", third.took, third.body)
				}
			})
		})
	}
}

func TestCompletedCallIsReplayedAgainAndAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("quiet")
		w.backend.tool("slow", func(r run) { time.Sleep(2 * time.Second); r.end(`{}`) })
		a := c.call("slow")
		from := a.events(t)[0].ID
		time.Sleep(12 * time.Hour)
		for range 3 {
			again := c.get(from)
			if diff := cmp.Diff(a.datas(t), again.datas(t)); diff != "" || again.took != 0 {
				t.Errorf("took %s: %s", again.took, diff)
			}
		}
	})
}

func TestForeignAndUnknownIDsReplayNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		mine, other := w.open("quiet"), w.open("quiet")
		w.backend.tool("secret", func(r run) { r.say("secret"); r.end(`{}`) })
		events := mine.call("secret").events(t)
		w.backend.attend = session.NotFound
		for _, id := range []string{events[0].ID, events[1].ID, "0/nosuchstream"} {
			a := other.get(id)
			if len(a.datas(t)) != 0 || a.took != 0 {
				t.Errorf("%s: held for %s with %s", id, a.took, a.body)
			}
		}
	})
}

func TestListenerHearsWhatWasSaidBeforeAndWhileItListens(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("pushy")
		c.push("before")
		done := w.start(c.request("GET", ""))
		time.Sleep(5 * time.Second)
		c.push("while")
		a := <-done
		if diff := cmp.Diff([]string{said("before"), said("while")}, a.datas(t)); diff != "" {
			t.Error(diff)
		}
		if a.flush[1].at != 5*time.Second || a.took != 25*time.Second {
			t.Errorf("flushed after %s, took %s", a.flush[1].at, a.took)
		}
		c.push("after")
		if diff := cmp.Diff([]string{said("after")}, c.get(a.lastID(t)).datas(t)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestOfManyListenersOneHears(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("pushy")
		primary := w.start(c.request("GET", ""))
		synctest.Wait()
		var shadows []<-chan *answer
		for range 5 {
			shadows = append(shadows, w.start(c.request("GET", "")))
		}
		time.Sleep(time.Second)
		c.push("once")
		if diff := cmp.Diff([]string{said("once")}, (<-primary).datas(t)); diff != "" {
			t.Error(diff)
		}
		for _, s := range shadows {
			if a := <-s; len(a.datas(t)) != 0 || !isPriming(a.events(t)[0]) || !strings.Contains(a.body, ": keep-alive\n\n") {
				t.Errorf("a shadow heard %s", a.body)
			}
		}
	})
}

func TestListenerThatWasCutComesBackToItsPlace(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("pushy")
		ctx, cancel := context.WithCancel(t.Context())
		done := w.start(c.request("GET", "").WithContext(ctx))
		time.Sleep(time.Second)
		c.push("one")
		synctest.Wait()
		cancel()
		first := <-done
		c.push("two")
		second := c.get(first.lastID(t))
		if diff := cmp.Diff([]string{said("one"), said("two")}, append(first.datas(t), second.datas(t)...)); diff != "" {
			t.Error(diff)
		}
		if second.flush[0].at != 0 {
			t.Errorf("waited %s for its own lease", second.flush[0].at)
		}
	})
}

func TestShadowKeepsThePlaceItsClientTold(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("pushy")
		c.push("one")
		c.push("two")
		last := c.get("").lastID(t)
		time.Sleep(time.Minute)
		primary := w.start(c.request("GET", "", "Last-Event-ID", last))
		synctest.Wait()
		stale, _, _ := strings.Cut(last, ".")
		shadow := c.get(stale)
		<-primary
		if id, err := session.ParseEventID(shadow.events(t)[0].ID); err != nil || id.Index != 2 {
			t.Errorf("the shadow was given %v, %v", id, err)
		}
	})
}

func TestLostEventsAreToldOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("pushy")
		for i := range 3 {
			batch := session.Batch{
				Session: session.ID(c.session), First: session.Index(i + 1), Gen: 1, Seq: int64(i + 1),
				Events: [][]byte{[]byte(said(strconv.Itoa(i + 1)))}, Expires: time.Now().Add(time.Hour * time.Duration(1+i)),
			}
			if err := w.store.Append(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
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

func TestListenerIsNotFoundOnceTheSessionEnded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("pushy")
		done := w.start(c.request("GET", ""))
		time.Sleep(time.Second)
		if a := w.do(c.request("DELETE", "")); a.status != 204 || a.body != "" {
			t.Fatalf("got %d %s", a.status, a.body)
		}
		a := <-done
		for _, method := range []string{"GET", "POST", "DELETE"} {
			if b := w.do(c.request(method, callOf("x"), "Last-Event-ID", a.lastID(t))); b.status != 404 {
				t.Errorf("%s: got %d %s", method, b.status, b.body)
			}
		}
	})
}

func TestSessionOutlivesADayOfSilence(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("quiet")
		time.Sleep(6 * 24 * time.Hour)
		if a := c.call("x"); a.status != 200 {
			t.Errorf("got %d %s", a.status, a.body)
		}
	})
}

// heard calls a function for each line of a log.
type heard func()

func (h heard) Write(p []byte) (int, error) {
	h()
	return len(p), nil
}

func TestAnAnswerCanBeSentBeforeItsLogLine(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("quiet")
		r := c.request("POST", `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
		rec := &recorder{header: http.Header{}, ctx: r.Context()}
		var sent []flush
		w.opts.AnswerFirst, w.opts.Log = true, slog.New(slog.NewJSONHandler(heard(func() { sent = rec.flushed }), nil))
		w.handler().ServeHTTP(rec, r)
		if len(sent) != 1 || rec.sent.Get("Content-Length") != strconv.Itoa(len(sent[0].text)) {
			t.Errorf("sent before the log line: %v, Content-Length %s", sent, rec.sent.Get("Content-Length"))
		}
	})
}

func TestOneLogLineForEachRequest(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.open("quiet")
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
				w.store.down("*")
				defer w.store.down()
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
