package local

import (
	"bytes"
	"io"
	"net/http"

	"github.com/dormouse-mcp/dormouse/shared/loop"
)

// loop gives a process its invocations over the connection it came by, one after the
// other, until it is dead.
func (a *runtimeAPI) loop(w http.ResponseWriter, i *instance) {
	<-i.spawned
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuseCall(w, http.StatusInternalServerError, "Hijack", err.Error())
		return
	}
	c, err := loop.NewConn(conn)
	defer func() { _ = conn.Close() }()
	for err == nil {
		inv, ok := i.fn.poll(i, i.dead)
		if !ok {
			return
		}
		err = a.turn(c, i, inv)
	}
	// A connection that broke is one of a dying process, and its end settles everything.
}

// turn is one invocation: handed out, and answered.
func (a *runtimeAPI) turn(c *loop.Conn, i *instance, inv *invocation) error {
	err := c.Hand(loop.Invocation{
		ID: inv.id, ARN: functionARN(i.fn.Name), Trace: newTraceID(inv.started),
		Deadline: inv.started.Add(i.fn.Timeout), Payload: inv.payload,
	})
	if err != nil {
		return err
	}
	answer, err := c.Answer()
	if err != nil {
		return err
	}
	if i.fn.take(i, inv.id) == nil {
		return io.ErrUnexpectedEOF
	}
	if answer.Failed != nil {
		i.fn.complete(inv, true)
		inv.fail(reported(inv, answer.Failed))
		return nil
	}
	if body, ok := answer.Whole(); ok {
		i.fn.complete(inv, false)
		if inv.claim() {
			inv.result <- result{answer: &Invocation{ContentType: answer.ContentType, Body: wholeBody{bytes.NewReader(body)}}}
		}
		return nil
	}
	from := incoming{contentType: answer.ContentType, body: answer, broken: func() *FunctionError {
		if r := answer.Broken(); r != nil {
			return reported(inv, r)
		}
		return nil
	}}
	if !a.response(i, inv, from) {
		return io.ErrUnexpectedEOF
	}
	return nil
}

func reported(inv *invocation, r *loop.Report) *FunctionError {
	return &FunctionError{Function: inv.fn.Name, RequestID: inv.id, Type: r.Type, Message: r.Message}
}

// wholeBody is the body of an answer of which nothing has to be waited for.
type wholeBody struct{ *bytes.Reader }

func (wholeBody) Close() error { return nil }
