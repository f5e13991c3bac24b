package session

import (
	"strconv"
	"strings"
	"time"
)

// A call that waits for a human holds nothing. A server of the modern era does not
// ask its client: it answers that it needs input, and is called again with it
// (MCP 2026-07-28, "Multi Round-Trip Requests"). Between the two there is no
// process that waits, only a Suspended item:
//
//	Taken ──▶ Suspended ──▶ Waiting ──▶ Taken ──▶ Suspended ──▶ ...
//	      asks         answered     claimed      asks again
//
// Each Suspended begins a round. A round is executed once: whoever finds that all
// its questions are answered makes the item wait again with one conditional write,
// and from then on it is claimed as every waiting item is.

// Question is something a suspended call wants to know of its client.
type Question struct {
	ID     string `json:"id"`           // what the client knows it by; see QuestionID
	Key    string `json:"key"`          // what the server calls it, unique in its request
	Method string `json:"method"`       // such as elicitation/create
	Of     int    `json:"of,omitempty"` // which request of Item.Raw asks, if that is a batch
}

// MaxRounds is how often one call may ask. A server that asks more goes round in
// circles, at the cost of its client.
const MaxRounds = 100

// MaxAsk is how long a question may stay open, whatever a box says.
const MaxAsk = EventAge

// QuestionID names question n of a round of a stream. It is unique for ever, and
// its answer finds the item without an index.
func QuestionID(stream StreamID, round, n int) string {
	return string(stream) + "." + strconv.Itoa(round) + "." + strconv.Itoa(n)
}

// Suspends says which stream and round a question belongs to; ok is false for one
// that a process has asked which waits for the answer.
func Suspends(question string) (stream StreamID, round int, ok bool) {
	id, rest, _ := strings.Cut(question, ".")
	r, n, _ := strings.Cut(rest, ".")
	round, err := strconv.Atoi(r)
	if _, bad := strconv.Atoi(n); err != nil || bad != nil || StreamID(id).Time().IsZero() {
		return "", 0, false
	}
	return StreamID(id), round, true
}

// Asks says that an item is suspended for a question.
func (it Item) Asks(question string) bool {
	if it.State != Suspended {
		return false
	}
	for _, q := range it.Questions {
		if q.ID == question {
			return true
		}
	}
	return false
}

// Suspend is the item that a call becomes which was executed as it, and asks. base
// is the index of the last event of the stream then, raw the request to send again.
func (it Item) Suspend(questions []Question, raw []byte, base Index, now time.Time, within time.Duration) Item {
	it.State, it.Round = Suspended, it.Round+1
	it.Questions, it.Raw, it.Base = questions, raw, base
	it.Created, it.NotAfter = now, now.Add(min(within, MaxAsk))
	return it
}

// Resume is the item that a suspended call becomes when all its questions are
// answered: raw, the request with the answers, waits for a box until notAfter.
func (it Item) Resume(raw []byte, now, notAfter time.Time) Item {
	it.State, it.Gen, it.Questions = Waiting, 0, nil
	it.Raw, it.Created, it.NotAfter = raw, now, notAfter
	return it
}
