package transport

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// call serves a request for the server. A request that the client sends again, with answers to
// questions of the server, has a State.
func (m modern) call() error {
	if m.req.State == "" {
		return m.forward()
	}
	state, err := m.resume()
	if err != nil {
		return err
	}
	turn := bridge.NewTurn(m.req, state.Stream, nil, state)
	answers, err := turn.Answers()
	if err != nil {
		return err
	}
	if state.Stream == "" {
		return m.resend(turn)
	}
	m.x.opts.asked.Delete(state.Stream) // this request reports the end, which may come as soon as the server has the answers
	call, server, err := m.x.opts.Host.Reattach(m.ctx, m.to.Caller, state.Stream, state.From, raws(answers)...)
	if errors.Is(err, storage.NotFound) {
		return bridge.BadState()
	}
	if err != nil {
		return err
	}
	turn.Served(server)
	return m.answer(call, server, turn)
}

func raws(answers []bridge.Answer) [][]byte {
	out := make([][]byte, len(answers))
	for i, a := range answers {
		out[i] = a.Raw
	}
	return out
}

func (m modern) forward() error {
	c := m.client()
	c.Round = m.req.Round
	if m.req.Method == wire.MethodToolsCall {
		c.Check = m.check
		if m.to.Listed != nil {
			c.List = m.list
		}
	}
	call, server, err := m.x.opts.Host.Send(m.ctx, m.to.Caller, c, m.req.Method, m.req.Forward())
	if err != nil {
		return err
	}
	return m.answer(call, server, bridge.NewTurn(m.req, call.Stream(), server, bridge.State{Round: m.req.Round}))
}

// check checks a call of a tool by what the list of tools says about it. If brief is true, this
// request waits until the call is accepted, and not for its end; see [sessions.Client].
func (m modern) check(notes json.RawMessage) (brief bool, err error) {
	if err := bridge.CheckParams(bridge.NotedParams(notes), m.req, m.x.r.Header.Values); err != nil {
		return false, err
	}
	if m.lacking(notes) {
		return false, bridge.NeedsTasks()
	}
	after, ok := m.after(notes)
	return ok && after <= soon, nil
}

// list lists the tools of a group's server for a caller that has never had the list. It stores what
// the list says about calls of the tools. If the server refuses, or does not answer within
// KeepAlive, calls of its tools are not checked.
func (m modern) list(ctx context.Context) (notes json.RawMessage, err error) {
	ctx, cancel := context.WithDeadline(ctx, m.x.begun.Add(m.x.opts.KeepAlive))
	defer cancel()
	client := m.client()
	client.Verbose = false
	list, err := m.to.Listed(ctx, client)
	switch {
	case m.ctx.Err() != nil:
		return nil, errGone
	case err == nil:
		notes = bridge.ToolNotes(list)
	case !errors.Is(err, context.DeadlineExceeded):
		return nil, nil // the next call asks again
	}
	if notes == nil {
		notes = json.RawMessage("{}") // the next call need not ask
	}
	return notes, m.x.opts.Host.Learn(m.ctx, m.to.Caller, nil, notes)
}

// resend repeats a call that ended because the user had to visit pages first. It returns an error if
// the client does not say that the user has accepted each visit.
func (m modern) resend(turn *bridge.Turn) error {
	if complete, agreed := turn.Complete(); !complete || !agreed {
		return &wire.Error{Code: wire.CodeInvalidParams, Message: "the server wants its user to visit a page first, and the user has not accepted each request for that; send the request again"}
	}
	return modern{m.x, m.ctx, turn.Request(), m.to}.forward()
}

// resume decrypts and checks the requestState that a client has sent with its request.
func (m modern) resume() (bridge.State, error) {
	if m.x.opts.Sealer == nil {
		return bridge.State{}, bridge.BadState()
	}
	plain, ok := m.x.opts.Sealer.Open(m.req.State)
	if !ok {
		return bridge.State{}, bridge.BadState()
	}
	return m.req.Resume(plain, sessions.PinnedID(m.to.Caller), time.Now())
}

// seal returns the requestState with which the client sends its request again. It is valid for as
// long as the log keeps events.
func (m modern) seal(state bridge.State) string {
	state.Session = sessions.PinnedID(m.to.Caller)
	state.Expires = time.Now().Add(m.x.opts.Host.Limits().EventAge).Unix()
	return m.x.opts.Sealer.Seal(state.Encode())
}

// A server's question waits questionPause for a further one, so that the client gets all of
// them in one answer. The first question waits at most questionsWithin.
const (
	questionPause   = 30 * time.Millisecond
	questionsWithin = 300 * time.Millisecond
)

// gathering is the wait for further questions. The zero value has no question.
type gathering struct {
	first, newest time.Time // when the first and the newest question came
	questions     int
}

// due returns the time at which the client gets the questions of a call. The time is zero while
// there are none.
func (g *gathering) due(turn *bridge.Turn) time.Time {
	if !turn.Asks() {
		*g = gathering{}
		return time.Time{}
	}
	now := time.Now()
	if g.first.IsZero() {
		g.first = now
	}
	n := turn.Questions()
	if n > g.questions || g.newest.IsZero() {
		g.newest = now
	}
	g.questions = n
	return earlier(g.newest.Add(questionPause), g.first.Add(questionsWithin))
}

// answer sends the outcome of a call. A client that closes the response cancels the call, unless the
// call has an idempotency key. If the store fails, a client that brought a requestState can send its
// request again, and the call goes on. The argument server is the server's serverInfo, nil if it is
// not known.
func (m modern) answer(call *sessions.Call, server json.RawMessage, turn *bridge.Turn) error {
	m.x.called.stream, m.x.called.again = call.Stream(), m.req.State != ""
	out := newReply(m)
	if after, ok := m.after(call.Learned()); ok {
		out.task = m.x.begun.Add(after)
	}
	err := m.follow(out, call, turn)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errTask):
		m.create(out, call, server)
		return nil
	}
	if call.Keyed() { // a later request with the same idempotency key gets the answer
		m.outlives(call)
		if errors.Is(err, errLate) {
			err = sessions.StillRunning()
		}
		return out.fail(err)
	}
	if m.req.State == "" || errors.Is(err, errGone) || errors.Is(err, errLate) || errors.Is(err, errForgotten) {
		ctx, cancel := m.x.detached()
		defer cancel()
		if abandoned := m.x.opts.Host.Abandon(ctx, m.to.Caller, call.Stream(), "the client closed the response"); abandoned != nil && m.x.err == nil {
			m.x.err = abandoned
		}
	}
	return out.fail(err)
}

// outlives notes that a call goes on after this request.
func (m modern) outlives(call *sessions.Call) {
	m.x.called.outlives(call.ForClient(m.to.Caller, m.x.session))
}

// follow reads events until there is an answer: the server's answer, or questions for
// the client. It returns errTask when the call is to become a task.
func (m modern) follow(out *reply, call *sessions.Call, turn *bridge.Turn) error {
	var asked gathering
	for {
		due := asked.due(turn)
		if !due.IsZero() && (turn.Again() || !time.Now().Before(due)) {
			if turn.Again() {
				m.x.called.stream = "" // the stream has ended, and the client's next request has another
			} else if c := &m.x.called; m.x.opts.Outlive != nil && c.tool != "" {
				c.asked = true
				m.x.opts.asked.Store(c.stream, c) // before the client has the question
				m.outlives(call)
			}
			out.finish(turn.Required(m.seal(turn.State())), 0)
			return nil
		}
		var events []storage.Event
		var err error
		if due.IsZero() {
			events, err = out.next(call)
		} else {
			events, err = out.until(call, due)
		}
		if err == nil && len(events) == 0 && call.Done() {
			err = errOver
		}
		if err != nil {
			return err
		}
		if complete, _ := turn.Complete(); len(events) > 0 && call.Gap() && !complete {
			return errForgotten
		}
		for _, e := range events {
			step := turn.Take(e)
			if err := m.learn(call, e, step); err != nil {
				return err
			}
			done, err := m.take(out, step)
			if done || err != nil {
				return err
			}
		}
	}
}

// learn stores what a list of tools says about calls of the tools, before the client can call one.
func (m modern) learn(call *sessions.Call, e storage.Event, step bridge.Step) error {
	first := m.req.Method == wire.MethodToolsList && wire.Lookup(m.req.Params, "cursor") == nil
	if !first || step.Reply == nil || step.Reply.Code != 0 {
		return nil
	}
	return m.x.opts.Host.Learn(m.ctx, m.to.Caller, call, bridge.ToolNotes(wire.Lookup(e.Raw, "result")))
}

// take handles one event. If done is true, the client has got the answer to its request.
func (m modern) take(out *reply, step bridge.Step) (done bool, err error) {
	switch {
	case step.Answer != nil:
		return false, m.x.opts.Host.Reply(m.ctx, m.to.Caller, step.Answer.Raw)
	case step.Notify != nil:
		return false, out.notify(step.Notify)
	case step.Reply != nil:
		m.x.called.ends(step.Reply.Raw, m.x.opts.ShowErrors)
		out.finish(step.Reply.Raw, step.Reply.Code)
		return true, nil
	}
	return false, nil
}
