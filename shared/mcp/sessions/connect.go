package sessions

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// needsSecrets reports whether a request is refused while its caller has not connected all
// [Server.Providers]. Requests for lists are not refused: clients list the tools before their
// user has connected an account.
func needsSecrets(method string) bool {
	return !slices.Contains([]string{
		wire.MethodInitialize, wire.MethodPing, wire.MethodSetLevel, wire.MethodToolsList, wire.MethodPromptsList,
		wire.MethodResourcesList, wire.MethodResourceTemplatesList,
	}, method)
}

// unconnected answers requests if err says that their caller has not connected an account at a third
// party. It returns nil for another error. The argument byURL says that the client supports elicitation
// by URL.
func (u *use) unconnected(err error, byURL bool, requests ...wire.Message) *Call {
	missing, ok := errors.AsType[*storage.NotConnected](err)
	if !ok {
		return nil
	}
	var raws [][]byte
	for _, m := range requests {
		if m.Kind == wire.Request {
			raws = append(raws, notConnected(m, err, missing.Pages, byURL))
		}
	}
	return u.manager.readyCall(raws...)
}

// notConnected returns the answer to one request. A client that supports elicitation by URL gets the
// error with the pages at which the user connects the accounts. Any other client gets a text, which
// for a tools/call is in the result. Each has the key metaConnect.
func notConnected(m wire.Message, err error, pages []storage.ConsentPage, byURL bool) []byte {
	text := err.Error()
	if e, ok := errors.AsType[*storage.Error](err); ok {
		text = e.Message
	}
	type elicitation struct {
		Mode string `json:"mode"`
		storage.ConsentPage
	}
	list := []elicitation{}
	for _, p := range pages {
		list = append(list, elicitation{"url", p})
	}
	if m.Method == wire.MethodToolsCall && (!byURL || len(list) == 0) {
		return wire.ResultResponse(m.ID, fmt.Appendf(nil, `{"content":[{"type":"text","text":%s}],"isError":true,"_meta":{%q:true}}`, wire.AppendString(nil, text), metaConnect))
	}
	data := map[string]any{metaConnect: true}
	if len(list) > 0 {
		data["elicitations"] = list
	}
	return wire.ErrorResponse(m.ID, &wire.Error{Code: wire.CodeURLElicitation, Message: text, Data: data})
}

// metaConnect is a key in the data of an error, or in the _meta of a result, that asks the user to
// connect an account at a third party.
const metaConnect = "dormouse/connect"

// Visited tells the client of a session that its user has done what an elicitation by URL asked for
// (MCP 2025-11-25, client/elicitation, "Completion Notifications for URL Mode"). age is how long the
// event is kept, 0 for [storage.EventAge]. Visited does nothing if the session or its connection is
// gone. It does nothing while a box writes to the session's standalone stream either: the box would
// take the event for one of a newer generation, and stop.
//
// Errors: Unavailable.
func (o Publisher) Visited(ctx context.Context, id storage.ID, elicitation string, age time.Duration) error {
	params := fmt.Appendf(nil, `{"elicitationId":%s}`, wire.AppendString(nil, elicitation))
	return o.tell(ctx, id, age, wire.NewNotification(wire.NotifyElicitationComplete, params))
}

// tell sends notifications to the client of a session. age is how long they are kept, 0 for
// [storage.EventAge]. tell does nothing if the session or its connection is gone, or while a box writes
// to the standalone stream.
func (o Publisher) tell(ctx context.Context, id storage.ID, age time.Duration, raws ...[]byte) error {
	s, _, err := o.Store.Load(ctx, id, "")
	if err != nil || s.State == storage.Ended {
		return storage.IgnoreNotFound(err)
	}
	a := storage.Address{Session: id, LegacySSE: s.Transport == storage.SSE}
	if s.Transport == storage.WebSocket {
		if len(s.Conns) == 0 {
			return nil
		}
		conn, err := o.Store.Connection(ctx, s.Conns[len(s.Conns)-1])
		if err != nil {
			return storage.IgnoreNotFound(err)
		}
		a.Conn, a.EventIDs, a.Through = conn.ID, conn.EventIDs, s.Through(conn.Group)
	}
	if age <= 0 {
		age = storage.EventAge
	}
	b := storage.Batch{
		Session: id, Stream: storage.Standalone, Seq: 1 + rand.Int64N(1<<53), Expires: time.Now().Add(age),
		Events: raws,
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		tail, err := o.Store.Tail(ctx, id, storage.Standalone)
		if err != nil {
			return err
		}
		box, err := o.Store.Box(ctx, s.Box())
		if err != nil || tail.Gen != 0 && box.State != storage.Asleep && box.Gen == tail.Gen {
			return err
		}
		b.First = tail.Last + 1
		if err := o.Append(ctx, a, b); !errors.Is(err, storage.Conflict) {
			return err
		}
		if err := storage.Rest(ctx, rand.N(pause)); err != nil {
			return err
		}
	}
}
