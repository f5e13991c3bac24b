package sessions

import (
	"bytes"
	"context"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/group"
)

// event posts one event to a connection, and its id if ids is set. A lost id does no harm,
// because the id of the next event includes it. through is not nil for the client of a group.
func (o Publisher) event(ctx context.Context, conn string, ids bool, s storage.ID, through *storage.Through, id storage.EventID, raw []byte) error {
	if len(raw) == 0 {
		return nil // an event without a message only closes an event stream
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

// EventNotice returns the notification that tells a WebSocket client an event id: the cursor
// to come back with. Only clients that asked for event ids get it. If request is not nil, it
// is the id of a request. The notice then says that this request was accepted, and which
// stream it has. s is the session of the client. If that is the session of a group, member is
// the server whose event it is.
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

// Fit returns an event in a form that a WebSocket client can get. An event of more than
// [storage.MaxPost] bytes becomes an error response that says h. If it is no response, it
// becomes a warning. The log keeps the original.
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

// memberMark stands in the id of an event that a client of a group gets over WebSocket, before
// the server whose event it is. So what follows the first "/" of an id names a stream there too.
const memberMark = "~"

// MemberEvent reads the id of an event that [EventNotice] has named. member is "" for an event
// of no server of a group.
func MemberEvent(text string) (member string, id storage.EventID, err error) {
	text, member, _ = strings.Cut(text, memberMark)
	id, err = storage.ParseEventID(text)
	return member, id, err
}
