package aggregate

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/group"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// stateless returns a copy of the group whose callers are modern and have this [sessions.Caller.Kind].
func (g *Group) stateless(kind string) *Group {
	k := *g
	k.As.Transport, k.As.Kind = storage.Modern, kind
	k.Members = slices.Clone(g.Members)
	for i := range k.Members {
		k.Members[i].Transport, k.Members[i].Kind = storage.Modern, kind
	}
	return &k
}

// Greeting implements [sessions.Endpoint]. Its "ttlMs": 0 tells the client not to cache an answer in
// which a member is missing.
func (g *Group) Greeting(ctx context.Context, _ string, client sessions.Client) (json.RawMessage, *sessions.Call, error) {
	greeting, whole, err := g.greeting(ctx, wire.V20251125, declared(client.Init))
	if err == nil && !whole {
		greeting = append(greeting[:len(greeting)-1], `,"ttlMs":0}`...)
	}
	return greeting, nil, err
}

// Dispatch implements [sessions.Endpoint].
func (g *Group) Dispatch(ctx context.Context, kind string, m wire.Message) ([]sessions.Dispatched, error) {
	k := g.stateless(kind)
	itself := sessions.Dispatched{Caller: k.As, Message: m}
	switch {
	case m.Kind == wire.Notification: // nothing says which member a notification is for, so all get it
		var all []sessions.Dispatched
		for _, c := range k.Members {
			all = append(all, sessions.Dispatched{Caller: c, Message: m})
		}
		return all, nil
	case m.Method == wire.MethodListen:
		return k.subscriptions(ctx, m)
	case k.answersList(m):
		itself.Result = func(ctx context.Context, client sessions.Client) (json.RawMessage, error) {
			result, err := k.list(ctx, m, modelOf(client.Init), &client)
			if err != nil {
				return nil, err
			}
			return bridge.Result(m.Method, result, group.Info()), nil
		}
		return []sessions.Dispatched{itself}, nil
	}
	m, err := g.searched(m)
	if err != nil {
		return nil, err
	}
	t, err := g.target(ctx, "", m)
	if err == nil && t.Member == "" && wire.OfExtension(m.Method) {
		t.Member, err = g.owner(ctx, "", m)
	}
	switch {
	case err != nil:
		return nil, err
	case t.Member == "":
		return []sessions.Dispatched{itself}, nil // the request has the id of a task that no member has
	}
	c, ok := k.member(t.Member)
	if !ok {
		return nil, forbidden(t.Member)
	}
	if m, err = t.Message(m); err != nil {
		return nil, err
	}
	return []sessions.Dispatched{{Caller: c, Message: m, View: g.view(t.Member).Message, Listed: func(ctx context.Context, client sessions.Client) (json.RawMessage, error) {
		list, err := k.ask(ctx, c, storage.Session{}, &client, wire.MethodToolsList)
		if hasNone(err) {
			return nil, nil
		}
		return list, err
	}}}, nil
}

// subscriptions returns a subscriptions/listen for each member that can send notifications which the
// client wants. A member whose answer to initialize is not known counts as one that can send all.
func (g *Group) subscriptions(ctx context.Context, m wire.Message) ([]sessions.Dispatched, error) {
	known, err := g.greetings(ctx, wire.V20251125, declaredIn(m))
	if err != nil {
		return nil, err
	}
	wanted, err := g.subscribed(ctx, m.Params)
	if err != nil {
		return nil, err
	}
	var all []sessions.Dispatched
	for i, c := range g.Members {
		greeting := known[i].Result
		if greeting == nil {
			greeting = group.Unknown()
		}
		own := m
		var wants bool
		if own.Params, wants = group.Subscription(c.Server.Name, wanted, greeting); wants {
			all = append(all, sessions.Dispatched{Caller: c, Message: own, View: g.view(c.Server.Name).Message, Greeting: greeting})
		}
	}
	return all, nil
}
