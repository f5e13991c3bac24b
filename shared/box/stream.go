package box

import (
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

type stream struct {
	session    *session
	id, ticket string // "" for the standalone stream
	round      int    // how often the delivery was suspended before
	came       time.Time
	open       int      // requests that are neither answered nor suspended
	asking     []asking // requests that were suspended, because their client must answer questions
}

// asking is a request whose client must answer questions.
type asking struct {
	raw       []byte // the request to deliver again with the answers
	questions []bridge.Asked
	requests  [][]byte      // the messages that ask the questions
	within    time.Duration // how long the client has to answer
}

func (st *stream) questions() int {
	n := 0
	for _, a := range st.asking {
		n += len(a.questions)
	}
	return n
}

// event passes a message of the stream to the sink.
func (st *stream) event(raw []byte, final bool) {
	e := frame.Event{Ticket: st.ticket, Raw: raw, Final: final}
	if st.id == "" {
		e.Ticket = st.session.ticket
	}
	st.session.output(st.id, e)
}

// answer ends a request that no process got, with a response of the box.
func (st *stream) answer(raw []byte) {
	st.open--
	st.event(raw, st.open == 0)
}

// refuseAll ends requests that no process got, with the error f.
func (st *stream) refuseAll(requests []wire.Message, f *fault) {
	for _, m := range requests {
		st.answer(f.response(m.ID))
	}
}

// ask suspends the delivery and sends the questions of its requests to the client. ask is called
// once, when each request of the delivery has ended or waits for answers.
func (st *stream) ask() {
	suspended := &frame.Suspension{}
	var raws, requests [][]byte
	for _, a := range st.asking {
		suspended.Questions = append(suspended.Questions, a.questions...)
		suspended.Within = a.within
		raws, requests = append(raws, a.raw), append(requests, a.requests...)
	}
	st.asking = nil
	if suspended.Raw = raws[0]; len(raws) > 1 {
		suspended.Raw = wire.Array(raws)
	}
	for i, raw := range requests {
		e := frame.Event{Ticket: st.ticket, Raw: raw}
		if i == len(requests)-1 {
			e.Asks = suspended
		}
		st.session.output(st.id, e)
	}
}
