package box

import (
	"bytes"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
)

// Suspension describes a delivery that ended in questions to its client.
type Suspension struct {
	Questions []bridge.Asked
	// Raw is the message to deliver again, in the next round, when the caller has the
	// answers: a request, or a batch of the requests of the delivery that have no answer
	// yet.
	Raw    []byte
	Within time.Duration // time limit for the answers
}

// asking is a request that needs something of its client.
type asking struct {
	raw       []byte // the request to deliver again
	questions []bridge.Asked
	requests  [][]byte // the messages that ask them
	within    time.Duration
}

// questions counts the questions of a stream.
func (st *stream) questions() int {
	n := 0
	for _, a := range st.asking {
		n += len(a.questions)
	}
	return n
}

// ask tells the client the questions of a delivery and suspends it. It is called once,
// when each of its requests has ended or needs something.
func (s *session) ask(st *stream) {
	suspended := &Suspension{}
	var raws, requests [][]byte
	for _, a := range st.asking {
		suspended.Questions = append(suspended.Questions, a.questions...)
		suspended.Within = a.within
		raws, requests = append(raws, a.raw), append(requests, a.requests...)
	}
	st.asking = nil
	if suspended.Raw = raws[0]; len(raws) > 1 {
		suspended.Raw = slices.Concat([]byte{'['}, bytes.Join(raws, []byte{','}), []byte{']'})
	}
	for i, raw := range requests {
		e := Output{Session: s.id, Stream: st.id, Ticket: st.ticket, Raw: raw}
		if i == len(requests)-1 {
			e.Asks = suspended
		}
		s.tell(told{call: func(k Sink) { k.Output(e) }, stream: e.Stream, bytes: len(raw)})
	}
}
