package transport_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

const (
	allCaps = `{"roots":{},"sampling":{},"elicitation":{"form":{},"url":{}}}`
	elicit  = `"method":"elicitation/create","params":{"message":"Your name?","requestedSchema":{"type":"object","properties":{}}}`
	sample  = `"method":"sampling/createMessage","params":{"messages":[],"maxTokens":20}`
	roots   = `"method":"roots/list"`
	accept  = `{"action":"accept","content":{"name":"ada"}}`
)

func asking(tool string) ask { a := toolCall(tool); a.caps = allCaps; return a }

// rounds holds what a client carries from one round to the next.
type rounds struct {
	State    string `json:"requestState"`
	Type     string `json:"resultType"`
	Requests map[string]struct {
		Method string
		Params json.RawMessage
	} `json:"inputRequests"`
}

func (a *answer) required(t *testing.T) rounds {
	t.Helper()
	raw := json.RawMessage(a.body)
	if a.header.Get("Content-Type") == wire.MediaSSE {
		datas := a.datas(t)
		raw = json.RawMessage(datas[len(datas)-1])
	}
	var r rounds
	if err := json.Unmarshal(wire.Lookup(raw, "result"), &r); err != nil || r.Type != "input_required" {
		t.Fatalf("no questions: %d %s", a.status, a.body)
	}
	return r
}

// retry returns the same request with answers: a JSON object with the answers by key.
func (a ask) retry(r rounds, answers string) ask {
	a.id = `"again"`
	a.params += `,"inputResponses":` + answers + `,"requestState":"` + r.State + `"`
	return a
}

func TestModernQuestionsOfOneCallComeTogether(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		var said []string
		w.backend.tool("asks", func(r run) {
			r.asks("q-1", elicit)
			time.Sleep(20 * time.Millisecond)
			r.asks("q-2", sample)
			time.Sleep(20 * time.Millisecond)
			r.asks("q-3", roots)
			said = r.answers("q-1", "q-2", "q-3")
			r.end(`{"content":[]}`)
		})
		first := w.do(asking("asks").request())
		asked := first.required(t)
		want := `"inputRequests":{"q-1":{` + elicit + `},"q-2":{` + sample + `},"q-3":{` + roots + `,"params":{}}}`
		if first.status != 200 || !strings.Contains(first.body, want) {
			t.Fatalf("got %s, want %s", first.body, want)
		}
		call := w.lastLine()
		commontest.EqualIn(t, "asked after", 70*time.Millisecond, first.took)
		got := w.do(asking("asks").retry(asked, `{"q-1":`+accept+`,"q-2":{"role":"assistant"},"q-3":{"roots":[]},"q-9":{"extra":1}}`).request())
		commontest.Equal(t, `{"jsonrpc":"2.0","id":"again","result":{"content":[],"resultType":"complete"}}`, got.body)
		commontest.Same(t, []string{accept, `{"role":"assistant"}`, `{"roots":[]}`}, said)
		if line := w.lastLine(); line.Outcome != "done" || line.Stream != call.Stream || call.Stream == "" {
			t.Errorf("the last round logged %+v of %+v", line, call)
		}
	})
}

func TestModernCallGoesOnOverSeveralRounds(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.opts.Outlive = func(work func(context.Context)) { go work(t.Context()) }
		w.backend.tool("asks", func(r run) {
			for i := range 3 {
				q := fmt.Sprintf("q%d", i)
				r.append(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p0","progress":`+fmt.Sprint(i+1)+`}}`, false)
				r.asks(q, elicit)
				r.answers(q)
			}
			r.end(`{"content":[]}`)
		})
		a := asking("asks")
		a.meta = `,"progressToken":"p0"`
		var got *answer
		next := a
		for i := range 3 {
			got = w.do(next.request())
			datas := got.datas(t)
			// Each round has its own progress, under its own token.
			if want := fmt.Sprintf(`{"progressToken":"p%d","progress":%d}`, i, i+1); len(datas) != 2 || !strings.Contains(datas[0], want) {
				t.Errorf("round %d: %s", i, datas)
			}
			asked := got.required(t)
			if _, ok := asked.Requests[fmt.Sprintf("q%d", i)]; !ok || len(asked.Requests) != 1 {
				t.Fatalf("round %d: %+v", i, asked)
			}
			next = a.retry(asked, fmt.Sprintf(`{"q%d":%s}`, i, accept))
			next.meta = fmt.Sprintf(`,"progressToken":"p%d"`, i+1)
		}
		w.do(next.request()).result(t)
		commontest.EqualIn(t, "calls", 1, len(w.backend.got))
		synctest.Wait()
		commontest.EqualIn(t, "ends that were told beside the last request's line", 0, strings.Count(w.logged.String(), `"ended"`))
	})
}

func (w *world) elicits() {
	w.backend.tool("asks", func(r run) {
		r.asks("q-1", elicit)
		r.end(`{"said":` + r.answers("q-1")[0] + `}`)
	})
}

func answered(asked rounds, answer string) *http.Request {
	return asking("asks").retry(asked, `{"q-1":`+answer+`}`).request()
}

func TestModernDeclineAndCancelAreTheServersToHear(t *testing.T) {
	for _, answer := range []string{`{"action":"decline"}`, `{"action":"cancel"}`} {
		modern(t, func(t *testing.T, w *world) {
			w.elicits()
			got := w.do(answered(w.do(asking("asks").request()).required(t), answer))
			commontest.Equal(t, answer, string(wire.Lookup(got.result(t), "said")))
		})
	}
}

func TestModernMissingAnswerIsAskedForAgain(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) {
			r.asks("q-1", elicit)
			r.asks("q-2", elicit)
			r.answers("q-1", "q-2")
			r.end(`{"content":[]}`)
		})
		asked := w.do(asking("asks").request()).required(t)
		again := w.do(answered(asked, accept)).required(t)
		if _, ok := again.Requests["q-2"]; !ok || len(again.Requests) != 1 {
			t.Fatalf("got %+v", again.Requests)
		}
		w.do(asking("asks").retry(again, `{"q-2":`+accept+`}`).request()).result(t)
	})
}

// A client that lost the response sends its answer again, or both come at once. The first answer
// counts, and the call is made once.
func TestModernRetryThatIsLostIsSentAgain(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.elicits()
		asked := w.do(asking("asks").request()).required(t)
		one, two := w.begin(answered(asked, accept)), w.begin(answered(asked, accept))
		if a, b := one.end(), two.end(); a.body != b.body || !strings.Contains(a.body, accept) {
			t.Errorf("got %s and %s", a.body, b.body)
		}
		got := w.do(answered(asked, `{"action":"decline"}`))
		commontest.Equal(t, accept, string(wire.Lookup(got.result(t), "said")))
		commontest.EqualIn(t, "calls", 1, len(w.backend.got))
	})
}

func TestModernStateIsWorthNothing(t *testing.T) {
	for name, change := range map[string]func(a *ask, r *rounds, answer *string){
		"when it was changed": func(_ *ask, r *rounds, _ *string) {
			b := []byte(r.State)
			b[len(b)/2] ^= 1
			r.State = string(b)
		},
		"when it is made up":           func(_ *ask, r *rounds, _ *string) { r.State = "eyJzIjoiIn0" },
		"when it has expired":          func(*ask, *rounds, *string) { time.Sleep(25 * time.Hour) },
		"to another principal":         func(a *ask, _ *rounds, _ *string) { a.headers = []string{"Authorization", "Bearer eve"} },
		"at another server":            func(a *ask, _ *rounds, _ *string) { a.server = "pushy" },
		"with other params":            func(a *ask, _ *rounds, _ *string) { a.params = strings.Replace(a.params, "{}", `{"a":1}`, 1) },
		"for another method":           func(a *ask, _ *rounds, _ *string) { a.method = "prompts/get" },
		"with an answer that is none":  func(_ *ask, _ *rounds, answer *string) { *answer = `7` },
		"with an answer of no meaning": func(_ *ask, _ *rounds, answer *string) { *answer = `{"action":"perhaps"}` },
	} {
		in(t, name, modern, func(t *testing.T, w *world) {
			w.backend.tool("asks", func(r run) { r.asks("q-1", elicit) })
			asked := w.do(asking("asks").request()).required(t)
			before, a, answer := len(w.backend.got), asking("asks"), accept
			change(&a, &asked, &answer)
			w.do(a.retry(asked, `{"q-1":`+answer+`}`).request()).is(t, name, 400, wire.CodeInvalidParams)
			if len(w.backend.got) != before || len(w.backend.answers) > 0 {
				t.Errorf("the server got %s %s", w.backend.got[before:], w.backend.answers)
			}
		})
	}
}

func TestModernClientIsAskedOnlyWhatItHasDeclared(t *testing.T) {
	const (
		url       = `"method":"elicitation/create","params":{"mode":"url","message":"Go","url":"https://a.example","elicitationId":"e"}`
		tools     = `"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1,"tools":[]}`
		cancelled = `{"action":"cancel"}`
	)
	for _, tt := range []struct {
		question, caps string
		refused        string // a part of the answer that the server gets; "" if the client is asked
	}{
		{elicit, `{"sampling":{}}`, cancelled},
		{elicit, `{"elicitation":{}}`, ""},
		{url, `{"elicitation":{"url":{}}}`, ""},
		{sample, `{"elicitation":{}}`, "-32601"},
		{tools, `{"sampling":{}}`, "-32601"},
		{`"method":"custom/ask"`, allCaps, "-32601"},
	} {
		modern(t, func(t *testing.T, w *world) {
			var said string
			w.backend.tool("asks", func(r run) {
				r.asks("q-1", tt.question)
				said = r.answers("q-1")[0]
				r.end(`{"content":[]}`)
			})
			a := toolCall("asks")
			a.caps = tt.caps
			got := w.do(a.request())
			if tt.refused != "" {
				got.result(t)
				commontest.Contains(t, "the server was told of "+tt.question, tt.refused, said)
				return
			}
			if _, ok := got.required(t).Requests["q-1"]; !ok || strings.Contains(got.body, "elicitationId") {
				t.Errorf("%s, %s: got %s", tt.question, tt.caps, got.body)
			}
			w.do(a.retry(got.required(t), `{"q-1":`+accept+`}`).request()).result(t)
		})
	}
}

// A call may fail because its client could not be asked. The error says which capability is
// missing. A tool that does without roots keeps its own error.
func TestModernCallThatFailsForACapabilitySaysWhich(t *testing.T) {
	for _, tt := range []struct{ question, end, want string }{
		{sample, `"error":{"code":-32603,"message":"cannot sample"}`, `"data":{"requiredCapabilities":{"sampling":{}},"serverError":"cannot sample"}`},
		{elicit, `"result":{"isError":true,"content":[{"type":"text","text":"no"}]}`, `"data":{"requiredCapabilities":{"elicitation":{"form":{}}},"serverError":"no"}`},
		{roots, `"result":{"isError":true,"content":[]}`, ""},
	} {
		modern(t, func(t *testing.T, w *world) {
			w.backend.tool("asks", func(r run) {
				r.asks("q-1", tt.question)
				r.answers("q-1")
				r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,`+tt.end+`}`, true)
			})
			got := w.do(toolCall("asks").request())
			if tt.want == "" {
				commontest.Contains(t, tt.question, `"isError":true`, string(got.result(t)))
				return
			}
			got.is(t, tt.question, 400, wire.CodeMissingCapability)
			commontest.Contains(t, tt.question, tt.want, got.body)
		})
	}
}

func TestModernURLsAreVisitedBeforeTheCallIsMadeAgain(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		calls := 0
		w.backend.tool("asks", func(r run) {
			if calls++; calls > 1 {
				r.end(`{"content":[]}`)
				return
			}
			r.fail(`{"code":-32042,"message":"visit","data":{"elicitations":[{"mode":"url","elicitationId":"e1","url":"https://a.example","message":"Log in"}]}}`)
		})
		first := w.do(asking("asks").request())
		asked := first.required(t)
		commontest.EqualIn(t, "the stream that somebody ends later", "", w.lastLine().Stream)
		want := `"inputRequests":{"url-1":{"method":"elicitation/create","params":{"mode":"url","url":"https://a.example","message":"Log in"}}}`
		if !strings.Contains(first.body, want) {
			t.Fatalf("got %s, want %s", first.body, want)
		}
		w.do(asking("asks").retry(asked, `{"url-1":{"action":"decline"}}`).request()).is(t, "declined", 400, 0)
		commontest.EqualIn(t, "calls", 1, calls)
		w.do(asking("asks").retry(asked, `{"url-1":{"action":"accept"}}`).request()).result(t)

		calls = 0
		commontest.Contains(t, "a client that visits nothing", `"data":{"requiredCapabilities":{"elicitation":{"url":{}}}`, w.do(toolCall("asks").request()).body)
	})
}

func TestModernRetryThatIsClosedCancelsTheCall(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) { r.asks("q-1", elicit); r.answers("q-1") })
		done := w.begin(answered(w.do(asking("asks").request()).required(t), accept))
		time.Sleep(time.Second)
		done.gone()
		commontest.Contains(t, "the server got last", "notifications/cancelled", w.backend.got[len(w.backend.got)-1])
	})
}

func TestModernStoreTroubleDoesNotCancelACallThatWaits(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.elicits()
		asked := w.do(asking("asks").request()).required(t)
		w.down("Wait")
		w.do(answered(asked, accept)).is(t, "while the store is down", 503, 0)
		w.down()
		w.do(answered(asked, accept)).result(t)
	})
}
