package box

import (
	"bytes"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
)

// Suspension is what becomes of a delivery that needs something of its client.
type Suspension struct {
	Questions []bridge.Asked
	// Raw is what is to be delivered again, in the next round, when it has the answers:
	// a request, or a batch of those of the delivery that are not answered yet.
	Raw    []byte
	Within time.Duration // for the answers
}

// asking is a request that needs something of its client.
type asking struct {
	raw       []byte // to be sent again
	questions []bridge.Asked
	requests  [][]byte // that ask them
	within    time.Duration
}

// questions counts those of a stream.
func (st *stream) questions() int {
	n := 0
	for _, a := range st.asking {
		n += len(a.questions)
	}
	return n
}

// ask tells the questions of a delivery, and that it is suspended: a batch when all
// its requests have ended or need something.
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
