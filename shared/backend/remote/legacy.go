package remote

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// round is the state that a call keeps while its client answers questions of the server.
type round struct {
	Turn      bridge.State    `json:"turn"`
	Questions []askedQuestion `json:"asked"`
	Last      string          `json:"last,omitempty"` // id of the last event of the stream
	Kept      string          `json:"kept,omitempty"` // name of the conversation in the process that keeps it open
}

// askedQuestion is a question of the server, with its index in the stream.
type askedQuestion struct {
	Index storage.Index   `json:"i"`
	Raw   json.RawMessage `json:"r"`
}

// Pauses of one request at a legacy server.
const (
	gather      = 100 * time.Millisecond // the wait for more questions after the first
	resumeWait  = time.Second            // pauses grow from a quarter of it to twice as much, if the server names none
	maxWait     = time.Minute            // the longest pause before a stream is resumed
	resumeTries = 8                      // how often a stream is resumed without any event, if the server names no pause
	quietFirst  = 2 * time.Second        // a resumed stream that is silent for so long is resumed again; doubles up to maxWait
)

// maxQuestions limits the questions that a client gets together.
const maxQuestions = 1024

func (x *exchange) legacy(ctx context.Context) (json.RawMessage, *wire.Error, error) {
	if x.req.LogLevel == "" && x.r.Legacy {
		x.req.LogLevel = "debug" // a legacy client that set no level gets all log messages
	} else if err := x.setLevel(ctx); err != nil {
		return nil, nil, err
	}
	var was round
	if x.req.State != "" && x.req.Rounds() {
		if json.Unmarshal([]byte(x.req.State), &was) != nil {
			return nil, bridge.BadState(), nil
		}
		if was.Turn.Stream != "" {
			return x.nextRound(ctx, was)
		}
	}
	c := &following{exchange: x, stream: storage.StreamID(storage.NewID()), standalone: joinStandalone(ctx, x)}
	defer c.standalone.leave(ctx, x)
	c.begin(was)
	id := c.name()
	raw, _ := wire.Replace(x.r.Raw, id, "id")
	if !x.passes() {
		raw = wire.NewRequest(id, x.r.Method, bridge.Strip(x.r.Method, x.r.Params))
	}
	if x.req.Token != nil {
		raw, _ = wire.Replace(raw, id, "params", "_meta", wire.MetaProgressToken)
	}
	var err error
	if x.link.Era == eraSSE {
		if c.talk, err = x.connect(ctx); err == nil {
			key := standaloneKey{storage.ID(x.r.Session.ID()), c.session()}
			remember(x.s.Servers, x.s.endpoints, key, c.talk.endpoint)
			defer forget(x.s.Servers, x.s.endpoints, key)
			err = x.tell(ctx, c.talk, raw)
		}
	} else if c.standalone != nil {
		c.talk = asking(ctx, x, raw)
	} else {
		c.talk, err = x.ask(ctx, raw, x.sessionHeader())
	}
	if err != nil {
		if ctx.Err() != nil {
			c.cancelled(ctx)
		}
		if c.talk != nil {
			c.talk.close()
		}
		return x.answerOf(err)
	}
	return c.follow(ctx)
}

// begin makes the turn of a round. The argument was is the state of the round before.
func (c *following) begin(was round) {
	c.turn = bridge.NewTurn(c.req, c.stream, bridge.ServerInfo(c.link.Handshake), was.Turn)
	if c.passes() {
		c.turn.Pass()
	}
}

// setLevel tells the server the level of log messages that the client wants, if the level
// has changed.
func (x *exchange) setLevel(ctx context.Context) error {
	if x.req.LogLevel == "" || x.req.LogLevel == x.link.Level || x.link.Era == eraSSE || wire.Lookup(x.link.Handshake, "capabilities", "logging") == nil {
		return nil
	}
	if x.r.Method == wire.MethodSetLevel {
		x.link.Level = x.req.LogLevel // the request itself tells the server
		return x.keep(ctx)
	}
	id := requestID()
	params, _ := json.Marshal(map[string]string{"level": x.req.LogLevel}) // cannot fail: it is a string
	talk, err := x.ask(ctx, wire.NewRequest(id, wire.MethodSetLevel, params), x.sessionHeader())
	if err != nil {
		return err
	}
	defer talk.close()
	if _, err := x.await(ctx, talk, id); err != nil {
		return err
	}
	x.link.Level = x.req.LogLevel
	return x.keep(ctx)
}

// nextRound goes on with a request after its client has answered. The argument was is the state of
// the request.
func (x *exchange) nextRound(ctx context.Context, was round) (json.RawMessage, *wire.Error, error) {
	c := &following{exchange: x, stream: was.Turn.Stream, index: was.Turn.Seen, standalone: joinStandalone(ctx, x)}
	defer c.standalone.leave(ctx, x)
	c.begin(was)
	answers, err := c.turn.Answers()
	if err != nil {
		var e *wire.Error
		errors.As(err, &e)
		return nil, e, nil
	}
	kept := x.s.take(was.Kept)
	if was.Kept != "" && kept == nil && was.Last == "" {
		return nil, nil, errors.New("it asked on a connection that is gone, and cannot resume it")
	}
	for _, a := range answers {
		if err := x.answer(ctx, kept, a); err != nil {
			if kept != nil {
				kept.close()
			}
			return nil, nil, err
		}
	}
	for _, q := range was.Questions {
		c.turn.Take(storage.Event{Index: q.Index, Raw: q.Raw})
		c.asked = append(c.asked, q)
	}
	c.turn.Take(storage.Event{Index: was.Turn.Seen})
	if c.turn.Asks() { // some answers are missing
		return c.required(kept, was.Last)
	}
	c.asked = nil
	if c.talk = kept; kept == nil {
		if c.talk, err = x.resume(ctx, was.Last); err != nil {
			return nil, nil, lost(err)
		}
		c.quiet = quietFirst
	}
	return c.follow(ctx)
}

// lost returns the error of a request that the server refused to resume. The request may have run.
// Other errors are returned unchanged.
func lost(err error) error {
	if refused, ok := errors.AsType[*refusal](err); ok {
		return errors.New(errLost.Error() + ": " + refused.Error())
	}
	return err
}

// answer posts the client's answer to a question of the server. a.Question is the JSON of the
// id that the server gave the question.
func (x *exchange) answer(ctx context.Context, talk *conversation, a bridge.Answer) error {
	raw, ok := wire.Replace(a.Raw, json.RawMessage(a.Question), "id")
	if !ok {
		return nil
	}
	return lost(x.tell(ctx, talk, raw))
}

// A server answers 409 if it has not noticed yet that the earlier connection of a stream is
// closed. resume asks noticeTries times, with pauses that grow by noticeWait.
const (
	noticeWait  = 20 * time.Millisecond
	noticeTries = 10
)

// resume opens a stream again, after the event lastID.
func (x *exchange) resume(ctx context.Context, lastID string) (*conversation, error) {
	h := x.sessionHeader()
	h.Set(wire.HeaderLastEventID, lastID)
	for try := 1; ; try++ {
		talk, err := x.stream(ctx, http.MethodGet, x.url, nil, h)
		if err == nil {
			talk.last = lastID
			return talk, nil
		}
		if !conflicts(err) || try == noticeTries || storage.Rest(ctx, noticeWait*time.Duration(try)) != nil {
			return nil, err
		}
	}
}

// conflicts reports whether a server refused a stream because the stream is open already.
func conflicts(err error) bool {
	var refused *refusal
	return errors.As(err, &refused) && refused.status == http.StatusConflict
}

// following reads the stream of one request to its end, or to the next questions.
type following struct {
	*exchange
	stream     storage.StreamID // names the request at the server
	turn       *bridge.Turn
	talk       *conversation // the stream of the request
	standalone *subscriber   // of the session's standalone stream; nil: nobody listens to it
	index      storage.Index // of the last message
	asked      []askedQuestion
	until      time.Time     // when the client gets the questions; zero: there are none
	told       int           // how many questions the client got while the request went on
	parked     []wire.SSE    // questions from the standalone stream, set aside until the request's own stream has an event
	due        time.Time     // until when the parked questions wait for that event; zero: none has waited
	polls      int           // how often the stream was resumed since its last message
	fails      int           // how often the stream was resumed since its last event
	quiet      time.Duration // a resumed stream that is silent for so long is resumed again; 0: the stream was not resumed
}

// follow reads the stream of the request, and the standalone stream if there is one, until the
// request ends or the client must be asked.
func (c *following) follow(ctx context.Context) (json.RawMessage, *wire.Error, error) {
	defer func() {
		if c.talk != nil {
			c.talk.close()
		}
	}()
	for {
		wait, cancel := ctx, context.CancelFunc(func() {})
		c.unpark(ctx)
		if c.gathers() {
			if c.turn.Questions() >= maxQuestions || !time.Now().Before(c.until) {
				return c.asks(ctx)
			}
			wait, cancel = context.WithDeadline(ctx, c.until)
		} else if len(c.parked) > 0 {
			wait, cancel = context.WithDeadline(ctx, c.due)
		} else if c.quiet > 0 {
			wait, cancel = context.WithTimeout(ctx, c.quiet)
		}
		e, apart, err := c.next(wait)
		cancel()
		switch {
		case apart:
			c.overhear(ctx, e)
			continue
		case err == nil:
		case ctx.Err() != nil:
			c.cancelled(ctx)
			return nil, nil, ctx.Err()
		case c.turn.Asks():
			return c.asks(ctx)
		case c.talk.failed:
			return c.answerOf(err)
		case errors.Is(err, errTooLong):
			return nil, nil, err
		case len(c.parked) > 0 && errors.Is(err, context.DeadlineExceeded):
			continue
		case errors.Is(err, context.DeadlineExceeded):
			// Some servers send nothing new on a resumed stream before the next resume.
			c.polls, c.fails = 0, 0
			if err = c.reconnect(ctx, errLost); err != nil {
				return nil, nil, err
			}
			c.quiet = min(2*c.quiet, maxWait)
			continue
		default:
			if err = c.reconnect(ctx, err); err != nil {
				return nil, nil, err
			}
			continue
		}
		c.fails = 0
		if len(e.Data) == 0 {
			c.note(nil, nil)
		}
		if len(e.Data) == 0 || e.Name != "" && e.Name != "message" {
			continue
		}
		reply, err := c.take(ctx, e.Data)
		if err != nil {
			return nil, nil, err
		}
		if reply != nil {
			if c.standalone != nil && c.talk.last != "" {
				c.standalone.stream.noteOthers(true)
			}
			c.leaves(ctx)
			c.linger(ctx)
			m, err := wire.Parse(reply.Raw)
			if err != nil {
				return nil, failure(phaseCall, "the remote server answered with a message that is malformed"), nil
			}
			return c.answered(m)
		}
	}
}

// gathers reports whether the client must be asked. At the first question it sets c.until. The
// client gets all questions that come before c.until together.
func (c *following) gathers() bool {
	switch {
	case !c.turn.Asks():
		c.until = time.Time{}
		if c.turn.Questions() == 0 {
			c.asked = nil // the server has cancelled its questions
		}
		return false
	case c.until.IsZero():
		c.until = time.Now().Add(gather)
	}
	return true
}

// take handles one message of the server. reply is not nil if the message ends the request.
func (c *following) take(ctx context.Context, data []byte) (reply *bridge.Response, err error) {
	m, err := c.talk.read(data, c.name())
	switch {
	case errors.As(err, new(*unreadable)):
		return nil, err
	case err != nil:
		return nil, nil
	}
	if m.Method == wire.NotifyProgress && !wire.SameID(wire.Lookup(m.Params, wire.MetaProgressToken), c.name()) {
		if c.quiet > 0 {
			c.s.learn(func(h *serverTraits) { h.mixes = true })
		}
		return nil, nil // the progress of another request; see streamState.Mixes
	}
	c.polls = 0
	raw := data
	defer func() { c.note(reply, err) }()
	switch {
	case m.Kind == wire.Request && m.Method == wire.MethodPing:
		return nil, c.tell(ctx, c.talk, wire.ResultResponse(m.ID, nil))
	case (m.Kind == wire.Request || m.Method == wire.NotifyCancelled) && c.passes() && !c.req.Rounds() && (c.link.Era == eraHTTP || c.s.Here):
		c.forward(ctx, m)
		return nil, nil
	case m.Kind == wire.Request:
		// The client gets the JSON text of the server's id as a string.
		named, _ := json.Marshal(string(m.ID)) // cannot fail: it is a string
		raw, _ = wire.Replace(data, named, "id")
	case m.Kind == wire.Notification && aboutSession(m.Method):
		if c.passes() {
			_ = c.r.Apart(ctx, data) // a notification may be lost
		} else if !c.r.Once {
			_ = c.r.Session.Notify(ctx, m.Method, m.Params) // a notification may be lost
		}
		return nil, nil
	}
	c.index++
	step := c.turn.Take(storage.Event{Index: c.index, Raw: raw})
	if m.Kind == wire.Request && step.Answer == nil {
		c.asked = append(c.asked, askedQuestion{c.index, raw})
	}
	if step.Notify != nil {
		c.r.Say(step.Notify)
	}
	if step.Answer != nil {
		return nil, c.answer(ctx, c.talk, *step.Answer)
	}
	return step.Reply, nil
}

// name is the id and the progress token of the request at the server.
func (c *following) name() json.RawMessage { return json.RawMessage(`"` + string(c.stream) + `"`) }

// note gives the caller a state with which another process can resume the request after its
// last event.
func (c *following) note(reply *bridge.Response, err error) {
	if c.link.Era != eraHTTP || c.talk == nil || c.talk.last == "" || reply != nil || err != nil || c.turn.Asks() {
		return
	}
	state, err := json.Marshal(round{Turn: bridge.State{Stream: c.stream, From: c.index, Seen: c.index}, Last: c.talk.last})
	if err == nil {
		c.r.Note(string(state))
	}
}

// aboutSession reports whether a notification belongs to the session and not to a request.
func aboutSession(method string) bool {
	switch method {
	case wire.NotifyToolsChanged, wire.NotifyPromptsChanged, wire.NotifyResourcesChanged, wire.NotifyResourceUpdated, wire.NotifyElicitationComplete:
		return true
	}
	return false
}

// reconnect resumes a stream that ended before the answer.
func (c *following) reconnect(ctx context.Context, why error) error {
	last, pause := c.talk.last, c.talk.retry
	c.talk.close()
	if c.link.Era == eraSSE || last == "" {
		return why
	}
	for {
		if c.fails++; c.fails > resumeTries && pause == 0 || c.fails > 1000 {
			return why
		}
		c.polls++
		wait := pause
		if wait == 0 {
			wait = resumeWait << min(c.polls-1, 3) / 4
		}
		if err := storage.Rest(ctx, min(max(wait, againFirst), maxWait)); err != nil {
			c.cancelled(ctx)
			return err
		}
		talk, err := c.resume(ctx, last)
		if err == nil {
			if talk.retry == 0 {
				talk.retry = pause
			}
			c.talk, c.quiet = talk, max(c.quiet, quietFirst)
			return nil
		}
		if _, ok := errors.AsType[*refusal](err); ok {
			return lost(err)
		}
	}
}

// cancelled tells the server that the client no longer waits for the answer.
func (c *following) cancelled(ctx context.Context) {
	raw := wire.NewNotification(wire.NotifyCancelled, json.RawMessage(`{"requestId":"","reason":"the client cancelled the request, or it took too long"}`))
	if said, ok := errors.AsType[native.Cancelled](context.Cause(ctx)); ok {
		raw = said
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWithin)
	defer cancel()
	raw, _ = wire.Replace(raw, c.name(), "params", "requestId")
	_ = c.tell(ctx, c.talk, raw) // if this is lost, the server does the work in vain
}

// asks returns a result with the questions, after which the client sends its answers. It keeps the
// stream of the request open if the stream cannot be resumed.
func (c *following) asks(ctx context.Context) (json.RawMessage, *wire.Error, error) {
	talk := c.talk
	c.due = time.Now()
	c.unpark(ctx)
	if c.turn.Again() || c.link.Era == eraHTTP && talk.last != "" && !mixes(c.exchange) {
		return c.required(nil, talk.last)
	}
	c.talk = nil // so that follow does not close the stream
	if talk.leave(); ctx.Err() != nil {
		talk.close()
		return nil, nil, ctx.Err()
	}
	return c.required(talk, talk.last)
}

// mixes reports whether the server is known to repeat events of other streams on a resumed
// stream, and to send nothing new on it. This process keeps the stream of a server that mixes
// open while the client is asked. Another process has to resume the stream nevertheless.
func mixes(x *exchange) bool {
	return x.s.traits().mixes || x.link.Mixes
}

// required returns the result that asks the client for input. This process keeps talk until the
// answers come. Another process resumes the stream after the event lastID.
func (c *following) required(talk *conversation, lastID string) (json.RawMessage, *wire.Error, error) {
	next := round{Turn: c.turn.State(), Last: lastID}
	for _, q := range c.asked {
		id, _ := wire.String(wire.Lookup(q.Raw, "id"))
		if _, open := next.Turn.Key(id); open {
			next.Questions = append(next.Questions, q)
		}
	}
	if talk != nil {
		next.Kept = string(storage.NewID())
		c.s.put(next.Kept, owner{c.r.Session.Tenant(), c.r.Session.Principal()}, talk, c.s.Answer)
	}
	state, err := json.Marshal(next)
	if err != nil {
		return nil, nil, err
	}
	if c.passes() {
		c.out.Asks, c.out.State = c.turn.Open(), string(state)
		return nil, nil, nil
	}
	return wire.Lookup(c.turn.Required(string(state)), "result"), nil, nil
}
