package transport_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

const (
	allCaps = `{"roots":{},"sampling":{},"elicitation":{"form":{},"url":{}}}`
	elicit  = `"method":"elicitation/create","params":{"message":"Your name?","requestedSchema":{"type":"object","properties":{}}}`
	sample  = `"method":"sampling/createMessage","params":{"messages":[],"maxTokens":20}`
	roots   = `"method":"roots/list"`
	accept  = `{"action":"accept","content":{"name":"ada"}}`
)

// asks lets a tool ask its client: the question is an event of the call, as that of a
// server is.
func (r run) asks(id, question string) {
	r.append(`{"jsonrpc":"2.0","id":"`+id+`",`+question+`}`, false)
}

// answers waits until all of these questions have been answered, and returns the client's
// answers.
func (r run) answers(ids ...string) []string {
	for {
		answers, err := r.w.store.Answers(r.ctx, r.session, ids)
		if err != nil {
			panic(err)
		}
		if len(answers) == len(ids) {
			said := make([]string, len(ids))
			for _, a := range answers {
				m, err := wire.Parse(a.Raw)
				if err != nil {
					panic(err)
				}
				said[slices.Index(ids, a.Question)] = string(m.Result) + string(m.Error)
			}
			return said
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// asking is a request of a client with all capabilities.
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
		if first.took != 70*time.Millisecond {
			t.Errorf("asked after %s, want 30 ms after the last question", first.took)
		}
		got := w.do(asking("asks").retry(asked, `{"q-1":`+accept+`,"q-2":{"role":"assistant"},"q-3":{"roots":[]},"q-9":{"extra":1}}`).request())
		if got.body != `{"jsonrpc":"2.0","id":"again","result":{"content":[],"resultType":"complete"}}` {
			t.Errorf("got %s", got.body)
		}
		commontest.Same(t, []string{accept, `{"role":"assistant"}`, `{"roots":[]}`}, said)
	})
}

func TestModernCallGoesOnOverSeveralRounds(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
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
		if n := len(w.backend.got); n != 1 {
			t.Errorf("the call was made %d times", n)
		}
	})
}

func TestModernDeclineAndCancelAreTheServersToHear(t *testing.T) {
	for _, action := range []string{"decline", "cancel"} {
		t.Run(action, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
				w.backend.tool("asks", func(r run) {
					r.asks("q-1", elicit)
					r.end(`{"said":` + r.answers("q-1")[0] + `}`)
				})
				asked := w.do(asking("asks").request()).required(t)
				got := w.do(asking("asks").retry(asked, `{"q-1":{"action":"`+action+`"}}`).request())
				if string(wire.Lookup(got.result(t), "said", "action")) != `"`+action+`"` {
					t.Errorf("got %s", got.body)
				}
			})
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
		again := w.do(asking("asks").retry(asked, `{"q-1":`+accept+`}`).request()).required(t)
		if _, ok := again.Requests["q-2"]; !ok || len(again.Requests) != 1 {
			t.Fatalf("got %+v", again.Requests)
		}
		w.do(asking("asks").retry(again, `{"q-2":`+accept+`}`).request()).result(t)
	})
}

func TestModernRetryThatIsLostIsSentAgain(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) {
			r.asks("q-1", elicit)
			r.end(`{"said":` + r.answers("q-1")[0] + `}`)
		})
		asked := w.do(asking("asks").request()).required(t)
		lost := asking("asks").retry(asked, `{"q-1":`+accept+`}`)
		// The client's answer reached the endpoint, but the client lost the response.
		w.do(lost.request()).result(t)
		got := w.do(asking("asks").retry(asked, `{"q-1":{"action":"decline"}}`).request())
		if string(wire.Lookup(got.result(t), "said", "action")) != `"accept"` {
			t.Errorf("the second answer counted: %s", got.body)
		}
		if n := len(w.backend.got); n != 1 {
			t.Errorf("the call was made %d times", n)
		}
	})
}

func TestModernDoubledRetryIsAnsweredTwice(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) {
			r.asks("q-1", elicit)
			r.answers("q-1")
			time.Sleep(5 * time.Second)
			r.end(`{"content":[]}`)
		})
		asked := w.do(asking("asks").request()).required(t)
		retry := asking("asks").retry(asked, `{"q-1":`+accept+`}`)
		one, two := w.begin(retry.request()), w.begin(retry.request())
		if a, b := one.end(), two.end(); a.body != b.body || !strings.Contains(a.body, `"complete"`) {
			t.Errorf("got %s and %s", a.body, b.body)
		}
	})
}

func TestModernStateIsWorthNothing(t *testing.T) {
	tests := []struct {
		name   string
		change func(a *ask, r *rounds)
	}{
		{"when it was changed", func(_ *ask, r *rounds) {
			b := []byte(r.State)
			b[len(b)/2] ^= 1
			r.State = string(b)
		}},
		{"when it is made up", func(_ *ask, r *rounds) { r.State = "eyJzIjoiIn0" }},
		{"when it has expired", func(_ *ask, _ *rounds) { time.Sleep(25 * time.Hour) }},
		{"to another principal", func(a *ask, _ *rounds) { a.headers = []string{"Authorization", "Bearer eve"} }},
		{"at another server", func(a *ask, _ *rounds) { a.server = "pushy" }},
		{"with other params", func(a *ask, _ *rounds) { a.params = strings.Replace(a.params, "{}", `{"a":1}`, 1) }},
		{"for another tool", func(a *ask, _ *rounds) { a.params = strings.Replace(a.params, "asks", "echo", 1) }},
		{"for another method", func(a *ask, _ *rounds) { a.method = "prompts/get" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
				w.backend.tool("asks", func(r run) { r.asks("q-1", elicit) })
				asked := w.do(asking("asks").request()).required(t)
				before := len(w.backend.got)
				a := asking("asks")
				tt.change(&a, &asked)
				got := w.do(a.retry(asked, `{"q-1":`+accept+`}`).request())
				if code, _ := got.rpcError(t); got.status != 400 || code != -32602 {
					t.Errorf("got %d %s", got.status, got.body)
				}
				if len(w.backend.got) != before || len(w.backend.answers) > 0 {
					t.Errorf("the server got %s %s", w.backend.got[before:], w.backend.answers)
				}
			})
		})
	}
}

func TestModernAnswerThatIsNoneIsRefused(t *testing.T) {
	for _, input := range []string{`7`, `null`, `"yes"`, `{}`, `{"action":"perhaps"}`} {
		modern(t, func(t *testing.T, w *world) {
			w.backend.tool("asks", func(r run) { r.asks("q-1", elicit) })
			asked := w.do(asking("asks").request()).required(t)
			got := w.do(asking("asks").retry(asked, `{"q-1":`+input+`}`).request())
			if code, _ := got.rpcError(t); got.status != 400 || code != -32602 {
				t.Errorf("%s: got %d %s", input, got.status, got.body)
			}
			if len(w.backend.answers) > 0 {
				t.Errorf("the server got %s", w.backend.answers)
			}
		})
	}
}

func TestModernClientIsAskedOnlyWhatItHasDeclared(t *testing.T) {
	const (
		url   = `"method":"elicitation/create","params":{"mode":"url","message":"Go","url":"https://a.example","elicitationId":"e"}`
		tools = `"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1,"tools":[]}`
	)
	cancelled := `{"action":"cancel"}`
	tests := []struct {
		question, caps string
		refused        string // a part of the answer that the server gets; "" if the client is asked
	}{
		{elicit, `{}`, cancelled},
		{elicit, `{"sampling":{}}`, cancelled},
		{elicit, `{"elicitation":{}}`, ""},
		{elicit, `{"elicitation":{"form":{}}}`, ""},
		{elicit, `{"elicitation":{"url":{}}}`, cancelled},
		{url, `{"elicitation":{}}`, cancelled},
		{url, `{"elicitation":{"url":{}}}`, ""},
		{sample, `{"elicitation":{}}`, "-32601"},
		{sample, `{"sampling":{}}`, ""},
		{tools, `{"sampling":{}}`, "-32601"},
		{tools, `{"sampling":{"tools":{}}}`, ""},
		{roots, `{"sampling":{}}`, "-32601"},
		{roots, `{"roots":{}}`, ""},
		{`"method":"custom/ask"`, allCaps, "-32601"},
	}
	for _, tt := range tests {
		t.Run(tt.question[:20]+" "+tt.caps, func(t *testing.T) {
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
				if tt.refused == "" {
					if _, ok := got.required(t).Requests["q-1"]; !ok || strings.Contains(got.body, "elicitationId") {
						t.Errorf("got %s", got.body)
					}
					w.do(a.retry(got.required(t), `{"q-1":`+accept+`}`).request()).result(t)
					return
				}
				got.result(t)
				commontest.Contains(t, "the server was told", tt.refused, said)
			})
		})
	}
}

func TestModernCallThatFailsForACapabilitySaysWhich(t *testing.T) {
	tests := []struct{ name, question, end, want string }{
		{"an error", sample, `"error":{"code":-32603,"message":"cannot sample"}`, `"data":{"requiredCapabilities":{"sampling":{}},"serverError":"cannot sample"}`},
		{"a result that is one", elicit, `"result":{"isError":true,"content":[{"type":"text","text":"no"}]}`, `"data":{"requiredCapabilities":{"elicitation":{"form":{}}},"serverError":"no"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
				w.backend.tool("asks", func(r run) {
					r.asks("q-1", tt.question)
					r.answers("q-1")
					r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,`+tt.end+`}`, true)
				})
				got := w.do(toolCall("asks").request())
				if code, _ := got.rpcError(t); got.status != 400 || code != -32021 || !strings.Contains(got.body, tt.want) {
					t.Errorf("got %d %s", got.status, got.body)
				}
			})
		})
	}
}

func TestModernToolThatDoesWithoutRootsKeepsItsOwnError(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) {
			r.asks("q-1", roots)
			r.answers("q-1")
			r.end(`{"isError":true,"content":[]}`)
		})
		if got := w.do(toolCall("asks").request()); string(wire.Lookup(got.result(t), "isError")) != "true" {
			t.Errorf("got %s", got.body)
		}
	})
}

func TestModernMethodWithoutRoundsIsNotAsked(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("tools/list", func(r run) {
			r.asks("q-1", roots)
			r.answers("q-1")
			r.end(`{"tools":[]}`)
		})
		w.do(ask{method: "tools/list", caps: allCaps}.request()).result(t)
	})
}

func TestModernQuestionThatIsTakenBackIsNotAsked(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) {
			r.asks("q-1", elicit)
			r.append(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q-1"}}`, false)
			time.Sleep(time.Second)
			r.end(`{"content":[]}`)
		})
		w.do(asking("asks").request()).result(t)
	})
}

func TestModernURLsAreVisitedBeforeTheCallIsMadeAgain(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		calls := 0
		w.backend.tool("asks", func(r run) {
			if calls++; calls > 1 {
				r.end(`{"content":[]}`)
				return
			}
			r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"error":{"code":-32042,"message":"visit","data":{"elicitations":[`+
				`{"mode":"url","elicitationId":"e1","url":"https://a.example","message":"Log in"}]}}}`, true)
		})
		first := w.do(asking("asks").request())
		asked := first.required(t)
		want := `"inputRequests":{"url-1":{"method":"elicitation/create","params":{"mode":"url","url":"https://a.example","message":"Log in"}}}`
		if !strings.Contains(first.body, want) {
			t.Fatalf("got %s, want %s", first.body, want)
		}
		if got := w.do(asking("asks").retry(asked, `{"url-1":{"action":"decline"}}`).request()); got.status != 400 {
			t.Errorf("declined: got %d %s", got.status, got.body)
		}
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
		w.do(asking("asks").retry(asked, `{"url-1":{"action":"accept"}}`).request()).result(t)

		calls = 0
		got := w.do(toolCall("asks").request())
		if code, _ := got.rpcError(t); code != -32021 || !strings.Contains(got.body, `{"elicitation":{"url":{}}}`) {
			t.Errorf("got %s", got.body)
		}
	})
}

func TestModernCallWhoseBoxIsLostSaysSo(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) {
			r.asks("q-1", elicit)
			time.Sleep(time.Minute)
			r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"error":{"code":-32603,"message":"the box stopped"}}`, true)
		})
		asked := w.do(asking("asks").request()).required(t)
		time.Sleep(2 * time.Minute)
		got := w.do(asking("asks").retry(asked, `{"q-1":`+accept+`}`).request())
		if code, message := got.rpcError(t); code != -32603 || message != "the box stopped" {
			t.Errorf("got %d %s", got.status, got.body)
		}
	})
}

func TestModernCallOfWhichNothingIsKeptIsOver(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) { r.asks("q-1", elicit) })
		asked := w.do(asking("asks").request()).required(t)
		w.backend.attend = storage.Errorf(storage.NotFound, "nobody owes this an end")
		got := w.do(asking("asks").retry(asked, `{"q-1":`+accept+`}`).request())
		if code, message := got.rpcError(t); got.status != 400 || code != -32602 || !strings.Contains(message, "its result is deleted") {
			t.Errorf("got %d %s", got.status, got.body)
		}
	})
}

// forgetful is a store that has lost the first event of every request stream.
type forgetful struct{ storage.Store }

func (s forgetful) Wait(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, until time.Time) (storage.Page, error) {
	page, err := s.Store.Wait(ctx, id, stream, max(after, 1), until)
	page.Gap = after < 1
	return page, err
}

func TestModernQuestionThatIsNotKeptCannotBeAskedAgain(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) {
			r.asks("q-1", elicit)
			r.asks("q-2", elicit)
		})
		asked := w.do(asking("asks").request()).required(t)
		w.serveFrom(forgetful{w.store})
		got := w.do(asking("asks").retry(asked, `{"q-2":`+accept+`}`).request())
		if code, message := got.rpcError(t); got.status != 400 || code != -32602 || !strings.Contains(message, "questions of this request are deleted") {
			t.Errorf("got %d %s", got.status, got.body)
		}
		commontest.Contains(t, "the server got", "notifications/cancelled", w.backend.got[len(w.backend.got)-1])
	})
}

func TestModernQuestionsWithoutEndReachTheClientSoon(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) {
			for i := range 30 {
				r.asks(fmt.Sprint("q-", i), elicit)
				time.Sleep(20 * time.Millisecond)
			}
		})
		if first := w.do(asking("asks").request()); first.took > 300*time.Millisecond || len(first.required(t).Requests) < 10 {
			t.Errorf("got %d questions after %s", len(first.required(t).Requests), first.took)
		}
		time.Sleep(time.Second) // until the tool has asked all
	})
}

func TestModernRetryThatIsClosedCancelsTheCall(t *testing.T) {
	for name, after := range map[string]time.Duration{
		"while questions are gathered": 25 * time.Millisecond, // q-2 comes within 10 ms, and is held for 30 ms
		"while the call runs":          time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
				w.backend.tool("asks", func(r run) {
					r.asks("q-1", elicit)
					r.answers("q-1")
					if after < time.Second {
						r.asks("q-2", elicit)
					}
				})
				asked := w.do(asking("asks").request()).required(t)
				done := w.begin(asking("asks").retry(asked, `{"q-1":`+accept+`}`).request())
				time.Sleep(after)
				done.gone()
				commontest.Contains(t, "the server got", "notifications/cancelled", w.backend.got[len(w.backend.got)-1])
			})
		})
	}
}

func TestModernStoreTroubleDoesNotCancelACallThatWaits(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) {
			r.asks("q-1", elicit)
			r.answers("q-1")
			r.end(`{"content":[]}`)
		})
		asked := w.do(asking("asks").request()).required(t)
		retry := asking("asks").retry(asked, `{"q-1":`+accept+`}`)
		w.down("Wait")
		if got := w.do(retry.request()); got.status != 503 {
			t.Errorf("got %d %s", got.status, got.body)
		}
		w.down()
		w.do(retry.request()).result(t)
	})
}

func TestModernWithoutASealerNobodyIsAsked(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.opts.Sealer = nil
		var said string
		w.backend.tool("asks", func(r run) {
			r.asks("q-1", elicit)
			said = r.answers("q-1")[0]
			r.end(`{"content":[]}`)
		})
		w.do(asking("asks").request()).result(t)
		if said != `{"action":"cancel"}` {
			t.Errorf("the server was told %s", said)
		}
		sealed := newSealer(t).Seal(bridge.State{}.Encode())
		if got := w.do(asking("asks").retry(rounds{State: sealed}, `{}`).request()); got.status != 400 {
			t.Errorf("got %d %s", got.status, got.body)
		}
	})
}
