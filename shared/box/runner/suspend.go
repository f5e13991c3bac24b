package runner

import (
	"bytes"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// suspendable checks a suspension of the box, because the host would refuse a bad one
// every time. If it is bad, suspendable ends its requests with an error and returns false.
func (ob *outboxes) suspendable(e Event) bool {
	e.Asks.Raw = bytes.ToValidUTF8(e.Asks.Raw, []byte("\uFFFD"))
	d := ob.deliveries.byID[e.Stream]
	var why string
	switch {
	case d == nil || e.Stream == storage.Standalone:
		return false
	case len(e.Raw)+len(e.Asks.Raw) > frame.MaxMessage:
		why = "the question and the request that is to be sent again are larger than the relay carries"
	case len(e.Asks.Questions) == 0 || len(e.Asks.Questions) > frame.MaxQuestions:
		why = "the server asks for too much at a time"
	case d.round >= storage.MaxRounds:
		why = "the server has asked too often"
	default:
		return true
	}
	ob.Log.Warn("call ended that cannot be suspended", "session_id", e.Session, "stream", e.Stream, "reason", why)
	ids := frame.RequestIDs(e.Asks.Raw)
	for i, id := range ids {
		raw := wire.ErrorResponse(id, &wire.Error{Code: wire.CodeInternal, Message: "tool_call: " + why, Data: map[string]any{"phase": "tool_call"}})
		ob.gather(ob.outbox(e.Session), Event{Session: e.Session, Stream: e.Stream, Ticket: e.Ticket, Raw: raw, Final: i == len(ids)-1})
	}
	return false
}

func (s *Suspension) raw() []byte {
	if s == nil {
		return nil
	}
	return s.Raw
}

// frame returns the Asks of an events frame. It is nil for a nil s.
func (s *Suspension) frame(round int) *frame.Asks {
	if s == nil {
		return nil
	}
	return &frame.Asks{Round: round, Questions: s.Questions, Within: s.Within.Milliseconds(), Len: len(s.Raw)}
}
