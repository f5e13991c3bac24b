package sessions

import (
	"bytes"
	"context"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/group"
)

// event posts one event to a connection, and its id if ids is set. A lost id does no harm, because
// the id of the next event replaces it. The argument through is not nil if the connection is one
// to a group.
func (o Publisher) event(ctx context.Context, conn string, ids bool, s storage.ID, through *storage.Through, id storage.EventID, raw []byte) error {
	if len(raw) == 0 {
		return nil // the event has no message: it only ends an HTTP response (storage.Event.Retry)
	}
	member := ""
	if through != nil {
		s, member = through.Group, through.Server
		raw = group.View{Member: member, Plain: through.Plain}.Message(raw)
	}
	if err := o.Clients.Post(ctx, conn, Fit(raw)); err != nil {
		return err
	}
	if ids {
		_ = o.Clients.Post(ctx, conn, EventNotice(s, member, id, nil))
	}
	return nil
}

// EventNotice returns the notification that tells a WebSocket client an event id, with which the
// client can come back. Only clients that asked for event ids get it. If request is not nil, the
// notification says that the request with this id was accepted, and which stream it has. s is the
// client's session. In a session with a group, member is the server whose event it is.
func EventNotice(s storage.ID, member string, id storage.EventID, request []byte) []byte {
	params := append([]byte(`{"sessionId":"`), s...)
	params = append(params, `","eventId":"`...)
	params = append(params, id.String()...)
	if member != "" {
		params = append(append(params, memberMark...), member...)
	}
	params = append(params, '"')
	if request != nil {
		params = append(append(params, `,"requestId":`...), request...)
	}
	return wire.NewNotification("notifications/dormouse/event", append(params, '}'))
}

// Fit returns an event in a form that a WebSocket client can get. A response of more than
// [storage.MaxPost] bytes becomes an error response, and another message of that size becomes a log
// message.
func Fit(raw []byte) []byte {
	if len(raw) <= storage.MaxPost {
		return raw
	}
	const text = "this message is larger than the 131072 bytes a WebSocket connection carries; use Streamable HTTP for it"
	m, err := wire.Parse(raw)
	if err == nil && m.Kind == wire.Response {
		return wire.ErrorResponse(bytes.Clone(m.ID), &wire.Error{
			Code: wire.CodeInternal, Message: text, Data: map[string]any{"bytes": len(raw), "limit": storage.MaxPost},
		})
	}
	return wire.NewNotification(wire.NotifyMessage, []byte(`{"level":"warning","logger":"dormouse","data":"`+text+`"}`))
}

// memberMark and the name of the member end an event id that a WebSocket client of a group gets.
const memberMark = "~"

// MemberEvent reads an event id that [EventNotice] has written. member is "" if the id has none.
func MemberEvent(text string) (member string, id storage.EventID, err error) {
	text, member, _ = strings.Cut(text, memberMark)
	id, err = storage.ParseEventID(text)
	return member, id, err
}
