package box

import (
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

type stream struct {
	session    *session
	id, ticket string // "" for the standalone stream
	round      int    // how often its delivery was suspended
	came       time.Time
	open       int      // requests that are at work
	asking     []asking // requests that need answers of their client
}

// asking is a request that needs answers of its client.
type asking struct {
	raw       []byte // the request to deliver again
	questions []bridge.Asked
	requests  [][]byte // the messages that ask the questions
	within    time.Duration
}

func (st *stream) questions() int {
	n := 0
	for _, a := range st.asking {
		n += len(a.questions)
	}
	return n
}

// event sends the client a message of the stream.
func (st *stream) event(raw []byte, final bool) {
	e := Output{Ticket: st.ticket, Raw: raw, Final: final}
	if st.id == "" {
		e.Ticket = st.session.ticket
	}
	st.session.output(st.id, e)
}

// answer ends a request with a response before a process gets it.
func (st *stream) answer(raw []byte) {
	st.open--
	st.event(raw, st.open == 0)
}

// refuseAll ends all requests of a delivery with f before a process gets them.
func (st *stream) refuseAll(requests []wire.Message, f *fault) {
	for _, m := range requests {
		st.answer(f.response(m.ID))
	}
}

// ask suspends the delivery: it sends the questions of its requests to the client. It is
// called once, when each request of the delivery has ended or waits for answers.
func (st *stream) ask() {
	suspended := &Suspension{}
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
		e := Output{Ticket: st.ticket, Raw: raw}
		if i == len(requests)-1 {
			e.Asks = suspended
		}
		st.session.output(st.id, e)
	}
}
