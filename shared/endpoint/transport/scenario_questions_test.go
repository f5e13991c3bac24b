package transport_test

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// question returns the scripted server's question as its client gets it.
func question(text string) string { return `{"jsonrpc":"2.0","id":"q-1",` + text + `}` }

// asks adds a tool that asks its client something, and returns the answer as its result.
// The answer reaches the server pushy, which is awake.
func (w *world) asks(text string) {
	w.awake("pushy")
	w.backend.tool("ask", func(r run) { r.end(`{"heard":` + r.ask("q-1", text) + `}`) })
}

// C-61, C-63, C-65: a client is asked and loses its connections. It answers hours later, over
// another connection, at an instance that has not seen the question. The server gets the
// answer byte for byte, and the client gets the end of its call.
func TestQuestionIsAnsweredFromElsewhereHoursLater(t *testing.T) {
	parties(t, "pushy", func(t *testing.T, w *world, p party) {
		w.asks(elicit)
		p.say(callOf("ask"))
		commontest.Same(t, []string{question(elicit)}, p.heard())
		p.leave()
		time.Sleep(5 * time.Hour)
		p.back()
		const answer = `{"jsonrpc":"2.0","id":"q-1","result":{"action":"accept","content":{"n":9007199254740993,"x":1e2, "ü":"\u00fc"}}}`
		p.say(answer)
		commontest.Same(t, []string{resultOf(`{"heard":` + answer + `}`)}, p.heard())
	})
}

// C-37, C-62, C-64, R-19, R-76: a question comes only on the response of the call that it belongs to. It
// comes neither on a listener nor on the response of another call.
func TestQuestionRidesTheResponseOfItsCall(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.asks(elicit)
		proceed := make(chan struct{})
		w.backend.tool("beside", func(r run) { r.say("beside"); <-proceed; r.end(`{}`) })
		v := w.visit("pushy")
		listener, beside := v.listen(""), v.calling("beside")
		call := v.calling("ask")
		commontest.Same(t, []string{question(elicit)}, call.seen().datas(t))
		const answer = `{"jsonrpc":"2.0","id":"q-1","error":{"code":-1,"message":"no","data":[1.50]}}`
		v.post(answer)
		commontest.Same(t, []string{question(elicit), resultOf(`{"heard":` + answer + `}`)}, call.end().datas(t))
		close(proceed)
		commontest.SameIn(t, "the other call", []string{said("beside"), resultOf(`{}`)}, beside.end().datas(t))
		commontest.EqualIn(t, "events of the listener", 0, len(listener.leave().datas(t)))
	})
}

// C-67, R-77: a server sends messages by itself, long after the call that caused them. They
// reach the client of that session: at once if it is connected, and otherwise when it
// comes back. The answer to a ping of the server goes to the server like any other.
func TestWhatAServerSaysOfItsOwnAccordReachesTheClient(t *testing.T) {
	parties(t, "pushy", func(t *testing.T, w *world, p party) {
		w.awake("pushy")
		again, pong := make(chan struct{}), make(chan string, 1)
		w.backend.tool("later", func(r run) {
			r.end(`{}`)
			time.Sleep(time.Hour)
			r.outside().say("while away")
			<-again
			r.outside().say("while there")
			pong <- r.outside().ask("q-1", `"method":"ping"`)
		})
		p.say(callOf("later"))
		commontest.Same(t, []string{resultOf(`{}`)}, p.heard())
		p.leave()
		time.Sleep(2 * time.Hour)
		p.back()
		commontest.Same(t, []string{said("while away")}, p.heard())
		close(again)
		commontest.Same(t, []string{said("while there"), question(`"method":"ping"`)}, p.heard())
		const answer = `{"jsonrpc":"2.0","id":"q-1","result":{}}`
		p.say(answer)
		commontest.EqualIn(t, "the server heard", answer, <-pong)
	})
}
