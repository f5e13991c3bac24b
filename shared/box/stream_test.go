package box

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestBatchIsOneStreamThatEndsOnce(t *testing.T) {
	r := newRig(t, "normal")
	d := r.deliver(" [ {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"},\n{\"jsonrpc\":\"2.0\",\"method\":\"notifications/roots/list_changed\"}, {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"prompts/list\"},{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}]")
	var got []string
	for final := false; !final; {
		e := r.event(t, d)
		got = append(got, string(wire.Lookup(e.Raw, "id"))+" "+string(wire.Lookup(e.Raw, "error", "code")))
		final = e.Final
	}
	commontest.SameIn(t, "ends of the batch", []string{"1 -32600", "1 ", "2 "}, got)
	commontest.SameIn(t, "the process", []string{"initialize", "notifications/initialized", "tools/list", "notifications/roots/list_changed", "ping"}, methods(r.seen()))
}

func TestBatchOfTheServerIsUnpacked(t *testing.T) {
	r := newRig(t, "normal")
	d := r.call(`"c"`, "say", `"[{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}, 5, {\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{\"a\":1.0}}]\n"`)
	if e := r.event(t, d); e.Final || string(wire.Lookup(e.Raw, "method")) != `"notifications/message"` {
		t.Errorf("first came %s", e.Raw)
	}
	if e := r.event(t, d); !e.Final || string(e.Raw) != `{"jsonrpc":"2.0","id":"c","result":{"a":1.0}}` {
		t.Errorf("then came %s", e.Raw)
	}
}

func TestMessageThatCannotBeReadEndsItsStream(t *testing.T) {
	r := newRig(t, "normal")
	for raw, want := range map[string]string{
		`{"jsonrpc":"2.0","id":7`:             "null -32700",
		`{"jsonrpc":"2.0","id":7,"method":1}`: "7 -32600",
		`[]`:                                  "null -32600",
		`[{"jsonrpc":"2.0","id":7,"method":"m"},{"jsonrpc":"1"}]`: "null -32600",
	} {
		f := r.failure(r.deliver(raw))
		commontest.Equal(t, want, f.ID+" "+strconv.Itoa(int(f.Code)))
	}
	commontest.EqualIn(t, "a process was started", 0, len(r.Processes()))
}

func TestEventsCarryTheTicketOfTheirDelivery(t *testing.T) {
	r := newRig(t, "normal")
	hang := r.call("1", "hang", "0") // ticket t1
	r.result(r.call("2", "say", `"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{}}\n"`))
	if e := r.event(t, ""); e.Ticket != "t2" || e.Session != "s" || e.Final {
		t.Errorf("the standalone event is %+v", e)
	}
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	commontest.EqualIn(t, "the end of the first has ticket", "t1", r.final(t, hang).Ticket)
}

func TestClosedStreamIsCancelledAndSaysNothingMore(t *testing.T) {
	r := newRig(t, "normal")
	d := r.call("1", "ask", `"e"`)
	q, _ := wire.String(wire.Lookup(r.event(t, d).Raw, "id"))
	r.CloseStream("s", storage.StreamID(d))
	r.CloseStream("s", "unknown")
	r.CloseStream("unknown", storage.StreamID(d))
	r.Answer("s", q, []byte(`{"jsonrpc":"2.0","id":"`+q+`","result":{}}`))
	lines := r.seen()
	number, last := string(wire.Lookup(lines[len(lines)-2], "id")), lines[len(lines)-1]
	commontest.EqualIn(t, "the process got at last", wire.NotifyCancelled, methods(lines)[len(lines)-1])
	commontest.EqualIn(t, "it cancels", number, string(wire.Lookup(last, "params", "requestId")))
	// The server may still answer the cancelled request. The client does not get that
	// answer.
	r.result(r.call("2", "say", `"{\"jsonrpc\":\"2.0\",\"id\":`+number+`,\"result\":{}}\n{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{}}\n"`))
	r.none(t, d)
	commontest.Eventually(t, "the box is idle", r.idle)
}

func TestClosedStreamDropsWhatTheSinkHasNotTaken(t *testing.T) {
	r := newRig(t, "normal")
	r.block = make(chan struct{})
	d := r.call("1", "echo", "0")
	commontest.Eventually(t, "the call has ended", func() bool { return len(r.Open()) == 0 })
	r.CloseStream("s", storage.StreamID(d))
	close(r.block)
	r.result(r.call("2", "echo", "0"))
	r.none(t, d)
}

func TestDeliveryInFlightIsNotExecutedTwice(t *testing.T) {
	r := newRig(t, "normal")
	d := r.call("1", "hang", "0")
	r.Deliver(frame.Deliver{ID: storage.StreamID(d), Session: "s", Raw: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}}`)})
	commontest.SameIn(t, "the process", []string{"initialize", "notifications/initialized", "tools/call"}, methods(r.seen()))
	r.none(t, d)
}

func FuzzOutput(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{}}` + "\n" + `{"jsonrpc":"2.0","id":2,"result":{}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":1.5,"message":7}}`,
		`[{"jsonrpc":"2.0","id":3,"method":"ping"},{"jsonrpc":"2.0","id":3,"method":"roots/list"},null]`,
		`{"jsonrpc":"2.0","id":1,"result":{}}` + "\n" + `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2}}`,
		`{"jsonrpc":"2.0","id":1,"result":{}}` + "\n" + `{"jsonrpc":"2.0","id":3,"result":{},"error":null}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}` + "\r\n\xff{}",
		"\uFEFF" + `{"jsonrpc":"2.0","id":"1","result":{},"error":null}` + "\n\x00" + `Loading{"id":2.0,"result":{}}{"jsonrpc":2.0,"id":3,"result":{}}`,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":""}}` + "\n\x1b[1m" + `{"method":"notifications/progress","params":{"progressToken":"2"},"id":null}`,
		"{\n  \"jsonrpc\": \"2.0\",\n  \"id\": 1,\n  \"result\": {}\n}\n{\n\t\"id\":[\n]",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, out []byte) {
		k := newRecorder()
		b := New(Server{Name: "fake", Command: "/bin/sh"}, k, nil)
		played := newPlayedChild()
		b.draw, b.spawn = counting(), func(proc.Command, proc.Grace) (child, error) { return played, nil }
		b.Deliver(frame.Deliver{ID: "d", Session: "s", Raw: []byte(`[{"jsonrpc":"2.0","id":"a","method":"m","params":{"_meta":{"progressToken":"t"}}},{"jsonrpc":"2.0","id":"b","method":"m"}]`)})
		_, err := played.toStdout.Write(append(out, '\n'))
		commontest.OK(t, err)
		played.Terminate()
		commontest.OK(t, b.Close(t.Context(), 0))
		ends := 0
		for len(k.calls) > 0 {
			e, ok := (<-k.calls).(frame.Event)
			if !ok {
				continue
			}
			if _, err := wire.Parse(e.Raw); err != nil || bytes.ContainsAny(e.Raw, "\r\n") {
				t.Errorf("event %q is no message on one line: %v", e.Raw, err)
			}
			if e.Stream == "d" && ends == 1 {
				t.Errorf("event after the end: %s", e.Raw)
			}
			if e.Final {
				ends++
			}
		}
		commontest.EqualIn(t, "the stream ended", 1, ends)
	})
}

func TestSlowCallIsCancelledAndTheProcessLivesOn(t *testing.T) {
	r := newRig(t, "normal", func(s *Server) { s.ToolTimeout = 50 * time.Millisecond })
	pid := r.result(r.deliver(`{"jsonrpc":"2.0","id":1,"method":"test/pid"}`))
	f := r.failure(r.call("2", "hang", "0"))
	if f.ID != "2" || f.Code != -32603 || f.Phase != PhaseToolCall || f.Limit != 0.05 || f.Setting != "tool_timeout_sec" {
		t.Errorf("got id %s, code %d, data %+v", f.ID, f.Code, f)
	}
	commontest.Equal(t, `server "fake": did not answer tools/call within 50ms (tool_timeout_sec); it was cancelled`, f.Message)
	lines := r.seen()
	commontest.SameIn(t, "the process", []string{wire.NotifyCancelled, wire.MethodPing, wire.MethodToolsList}, methods(lines[len(lines)-3:]))
	commontest.Equal(t, string(pid), string(r.result(r.deliver(`{"jsonrpc":"2.0","id":3,"method":"test/pid"}`))))
}

func TestABoxWithARequestInFlightIsNotIdle(t *testing.T) {
	r := newRig(t, "normal")
	batch := r.deliver(`[{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"hang"}},{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"hang"}}]`)
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	if _, idle := r.IdleSince(); idle || !r.isOpen("s", batch) {
		t.Error("the box is idle with a request in flight")
	}
}

func TestAnswerInAnOddFormIsTaken(t *testing.T) {
	for name, form := range map[string]string{
		"a byte order mark": "\uFEFF" + `{"jsonrpc":"2.0","id":%d,"result":%s}`,
		"an id in quotes":   `{"jsonrpc":"2.0","id":"%d","result":%s}`,
		"text before it":    `Loading 100%%{"jsonrpc":"2.0","id":%d,"result":%s}`,
		"error null":        `{"jsonrpc":"2.0","id":%d,"result":%s,"error":null}`,
		"behind another":    `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}{"jsonrpc":"2.0","id":%d,"result":%s}`,
		"NUL bytes":         "\x00" + `{"jsonrpc":"2.0","id":%d,"result":%s}` + "\x00",
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleFrom(t, Server{}, func(t *testing.T, d dialogue) {
				call := d.call(`"mine"`, "t", "{}")
				synctest.Wait()
				d.hears(fmt.Sprintf(form, 1, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}`))
				synctest.Wait()
				d.hears(fmt.Sprintf(form, 2, `{"content":[]}`))
				commontest.EqualIn(t, "the client", `{"jsonrpc":"2.0","id":"mine","result":{"content":[]}}`, string(d.final(t, call).Raw))
			})
		})
	}
}

// What cannot be understood ends what waits for it, at once where the right answer cannot
// follow, and the error quotes it without secrets.
func TestAnswerThatCannotBeUnderstoodEndsWhatWaitsForIt(t *testing.T) {
	for name, c := range map[string]struct{ form, why, quotes string }{
		"an error that is a string": {`{"jsonrpc":"2.0","id":%d,"error":"no hunter22"}`, `member "error" must be an object`, `"error":"no ***"}`},
		"an error with id null":     {`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"bad xxxxxxxx"}}`, "its error has no id", `"message":"bad `},
		"an id in an array":         {`{"jsonrpc":"2.0","id":[%d],"result":{}}`, `member "id" must be`, `"result":{}}`},
		"a result and an error":     {`{"jsonrpc":"2.0","id":%d,"result":{},"error":{}}`, "must not have both", `"error":{}}`},
		"no JSON":                   {`{"jsonrpc":"2.0","id":%d,"result":{"mean":NaN}}`, "not valid JSON at byte", "NaN"},
		"cut short":                 {`{"jsonrpc":"2.0","id":%d,"result":{"a":"b`, "not valid JSON: it ends", `"a":"b`},
		"several lines":             {"{\n  \"jsonrpc\": \"2.0\",\n  \"id\": %d,\n  \"result\": {\n    \"a\": 1\n  }\n}", "it has several lines", `{ "jsonrpc": "2.0", "id": `},
	} {
		for method, bubble := range map[string]func(*testing.T, Server, func(*testing.T, dialogue)){"initialize": inBubbleFrom, "tools/call": inBubble} {
			t.Run(name+" to "+method, func(t *testing.T) {
				bubble(t, Server{ShowOutput: true, Env: map[string]string{"KEY": "hunter22"}}, func(t *testing.T, d dialogue) {
					call := d.call("1", "t", "{}")
					synctest.Wait()
					d.hears(strings.NewReplacer("%d", map[string]string{"initialize": "1", "tools/call": "2"}[method], "xxxxxxxx", strings.Repeat("x", 2*maxQuote)).Replace(c.form))
					time.Sleep(repair)
					if !d.ended(call) {
						t.Fatal("it is waited for")
					}
					message := d.fails(call, "", "answered "+method+" with something that is no JSON-RPC response: ").Message
					commontest.Contains(t, "why", c.why, message)
					commontest.Contains(t, "the quote", c.quotes, message)
					if strings.Contains(message, "hunter22") || strings.Contains(message, "\n") || len(message) > 2*maxQuote+200 {
						t.Errorf("got %q", message)
					}
				})
			})
		}
	}
}

const unnamedError = `{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"oops"}}`

// A server may answer notifications with such errors, so the box asks whether it still reads. An
// answer to that without one more error means that the error was about the call.
func TestErrorWithoutAnIDMayBeAboutANotification(t *testing.T) {
	for name, answers := range map[string]bool{"a server that answers notifications": true, "a server that does not": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Server{}, func(t *testing.T, d dialogue) {
				call := d.call("1", "t", "{}")
				d.drain()
				d.hears(unnamedError)
				commontest.EqualIn(t, "the call has ended at once", false, d.ended(call))
				asked := d.drain() // a cancel of nothing, and a ping
				if answers {
					d.hears(unnamedError)
				}
				ping, _ := wire.Parse(asked[1])
				d.hears(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, ping.ID))
				commontest.EqualIn(t, "the call has ended", !answers, d.ended(call))
			})
		})
	}
}

func TestErrorWithoutAnIDEndsTheOnlyCall(t *testing.T) {
	inBubble(t, Server{}, func(t *testing.T, d dialogue) {
		first, second := d.call("1", "t", "{}"), d.call("2", "t", "{}")
		synctest.Wait()
		d.hears(unnamedError)
		if d.ended(first) || d.ended(second) {
			t.Fatal("a call of two ended")
		}
		d.hears(`{"jsonrpc":"2.0","id":2,"result":{}}`)
		d.result(first)
		d.hears(unnamedError)
		if !d.ended(second) {
			t.Fatal("the only call goes on")
		}
		d.failure(second)
	})
}

// Some servers print an answer before they send it.
func TestRightAnswerAfterABrokenOneCounts(t *testing.T) {
	inBubble(t, Server{}, func(t *testing.T, d dialogue) {
		call := d.call("1", "t", "{}")
		synctest.Wait()
		d.hears("{\n  \"jsonrpc\": \"2.0\",\n  \"id\": 2,\n  \"result\": {}\n}")
		time.Sleep(repair - time.Millisecond)
		d.hears(`{"jsonrpc":"2.0","id":2,"result":{"ok":true}}`)
		commontest.Equal(t, `{"ok":true}`, string(d.result(call)))
		time.Sleep(2 * repair)
	})
}

// A long answer that finds no room ends its call, which may be made again. The bytes of short
// ones pass.
func TestAnAnswerWithoutRoomEndsItsCall(t *testing.T) {
	const most = 1 << 20
	budget := guard.NewBudget(most)
	inBubble(t, Server{Guard: guard.New(slog.New(slog.DiscardHandler), budget, nil)}, func(t *testing.T, d dialogue) {
		answered := func(bytes int) string {
			call := d.call("1", "t", "{}")
			synctest.Wait()
			d.hears(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"x":"%s"}}`, *d.drawn, strings.Repeat("x", bytes)))
			time.Sleep(time.Minute)
			return string(d.final(t, call).Raw)
		}
		budget.Hold(most + 1) // of other boxes
		commontest.Contains(t, "a long answer", "for which there was no room", answered(most))
		commontest.Contains(t, "a short answer", "xxxxxxxxxx", answered(10))
		budget.Hold(-most - 1)
		if raw := answered(most); len(raw) < most {
			t.Errorf("a long answer when there is room: %.300s", raw)
		}
	})
	budget.Hold(most)
	commontest.EqualIn(t, "the box holds nothing", true, budget.Room())
}

// The members at the top of the answer stay as they are, so each line still looks like an answer.
func TestNoCallWaitsAfterWhatLooksLikeItsAnswer(t *testing.T) {
	const top, rest = `{"jsonrpc":"2.0","id":2,"result":{`, `"content":[{"type":"text","text":"a\"b"}],"n":[1,2.5,null]},"error":null}`
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
		answer := []byte(rest)
		for range 1 + random.IntN(3) {
			at := random.IntN(len(answer))
			switch random.IntN(3) {
			case 0:
				answer[at] = byte(random.IntN(256))
			case 1:
				answer = slices.Insert(answer, at, []byte("\x00\x1b[1m\uFEFF{}[]\",:x"[random.IntN(12):])...)
			default:
				answer = answer[:at+1]
			}
		}
		inBubble(t, Server{}, func(t *testing.T, d dialogue) {
			call := d.call("1", "t", "{}")
			synctest.Wait()
			d.hears(top + strings.ReplaceAll(string(answer), "\n", " "))
			time.Sleep(repair)
			if !d.ended(call) {
				t.Fatalf("the call waits after %q", answer)
			}
			if m, err := wire.Parse(d.final(t, call).Raw); err != nil || string(m.ID) != "1" {
				t.Errorf("after %q the client gets %+v, %v", answer, m, err)
			}
		})
	}
}
