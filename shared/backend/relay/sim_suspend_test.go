package relay_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// In every third world boxes ask their clients as servers of the modern era do: a request
// takes a few rounds, and between them no process works on it. Each round is executed
// once, with the answers to the questions of the previous round.

func (w *world) asks() bool { return w.seed%3 == 1 && !w.repeats }

func (w *world) capabilities() string {
	if w.asks() {
		return `{"elicitation":{}}`
	}
	return `{}`
}

// rounds returns how often a request asks before it is answered.
func (w *world) rounds(label string) int {
	if !w.asks() {
		return 0
	}
	return []int{0, 0, 0, 1, 1, 2, 4}[w.random("rounds of "+label).IntN(7)]
}

// simAsking is a request of a call that needs input, with the state that must come back
// with it.
type simAsking struct {
	raw   []byte
	label string
	count int
}

// answered checks that a request of a later round brings the answers to its own questions,
// and no others.
func (x *simBox) answered(c *simCall, m wire.Message) {
	label := labelOf(m.Raw)
	state, _ := wire.String(wire.Lookup(m.Params, "requestState"))
	var inputs map[string]struct{ Answer string }
	given := wire.Lookup(m.Params, "inputResponses")
	if c.round == 0 {
		x.w.breaksIf(state != "" || given != nil, "%s brings answers to what was not asked: %s", label, given)
		return
	}
	if err := json.Unmarshal(given, &inputs); err != nil {
		x.w.breaks("%s was executed in round %d without answers: %.300s", label, c.round, m.Raw)
		return
	}
	var stream, asker string
	var round, first, count int
	if n, err := fmt.Sscan(state, &stream, &round, &asker, &first, &count); n != 5 {
		x.w.breaks("%s brings the state %q: %v", label, state, err)
		return
	}
	want := map[string]struct{ Answer string }{}
	for n := range count {
		want[fmt.Sprintf("k%d", n)] = struct{ Answer string }{storage.QuestionID(c.id, c.round, first+n)}
	}
	if stream != string(c.id) || round != c.round || asker != label || !maps.Equal(inputs, want) {
		x.w.breaks("%s in round %d brings the state %q and the answers %v", label, c.round, state, inputs)
	}
}

// wants removes a request from a call because the request needs input. The call's
// questions are sent when all its other requests have ended or need input too.
func (x *simBox) wants(a *actor, c *simCall, m wire.Message) {
	c.s.turn <- struct{}{}
	x.mu.Lock()
	c.open = slices.DeleteFunc(c.open, func(o json.RawMessage) bool { return wire.SameID(o, m.ID) })
	c.asking = append(c.asking, simAsking{m.Raw, labelOf(m.Raw), 1 + a.rng.IntN(3)})
	x.mu.Unlock()
	x.suspendInTurn(c)
	<-c.s.turn
}

// suspendInTurn asks the questions and suspends the call, if none of its requests is open
// any more.
func (x *simBox) suspendInTurn(c *simCall) {
	x.mu.Lock()
	asking := c.asking
	if len(c.open) > 0 || len(asking) == 0 || x.gone || c.stopped {
		x.mu.Unlock()
		return
	}
	x.mu.Unlock()
	s := &frame.Suspension{Within: 20 * time.Minute}
	var raws, again []string
	for of, r := range asking {
		m := simMessage(r.raw)
		first := len(s.Questions)
		for n := range r.count {
			id := storage.QuestionID(c.id, c.round+1, first+n)
			s.Questions = append(s.Questions, storage.Question{ID: id, Key: fmt.Sprintf("k%d", n), Method: wire.MethodElicit, Of: of})
			raws = append(raws, string(wire.NewRequest(fmt.Appendf(nil, "%q", id), wire.MethodElicit,
				fmt.Appendf(nil, `{"label":%q,"by":%q,"round":%d,"n":%d}`, r.label, x.p.name, c.round+1, first+n))))
		}
		params := fmt.Appendf(nil, `{"label":%q,"requestState":"%s %d %s %d %d"}`, r.label, c.id, c.round+1, r.label, first, r.count)
		again = append(again, string(wire.NewRequest(m.ID, m.Method, params)))
	}
	s.Raw = []byte(again[0])
	if len(again) > 1 {
		s.Raw = []byte("[" + strings.Join(again, ",") + "]")
	}
	for i, raw := range raws {
		e := frame.Event{Session: c.s.id, Stream: c.id, Ticket: c.ticket, Raw: []byte(raw)}
		if i == len(raws)-1 {
			e.Asks = s
		}
		x.handInTurn(c, e)
	}
	x.over(c)
}

// simQuestion returns a name for a question. The name is the same in each run.
func simQuestion(m wire.Message) string {
	question, _ := wire.String(m.ID)
	if _, _, ok := storage.Suspends(question); !ok {
		return question
	}
	return fmt.Sprintf("%s.%s.%s", labelOf(m.Raw), wire.Lookup(m.Params, "round"), wire.Lookup(m.Params, "n"))
}

// cancels sends notifications/cancelled for a request, some time after the request. It
// may be late, or too early. From then on the request may end in an error.
func (c *simClient) cancels(r *simRequest) {
	if !c.w.asks() || c.w.random("cancel "+r.label).IntN(8) > 0 {
		return
	}
	c.w.wg.Go(func() {
		if nap(c.w.ctx, draw(c.w.random("cancels "+r.label), time.Minute)) != nil {
			return
		}
		r.mu.Lock()
		r.late = true
		r.mu.Unlock()
		params := fmt.Appendf(nil, `{"requestId":%s,"label":%q}`, r.ids[0], r.label+".cancel")
		_ = c.tell("cancel "+r.label, wire.NewNotification(wire.NotifyCancelled, params))
	})
}
