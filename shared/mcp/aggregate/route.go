package aggregate

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Route implements [sessions.Endpoint].
func (g *Group) Route(ctx context.Context, id storage.ID, msgs []wire.Message, batch bool) (sessions.Routed, error) {
	if batch {
		return g.routeBatch(ctx, id, msgs)
	}
	m := msgs[0]
	if answer := g.own(id, m); answer != nil {
		return sessions.Routed{Caller: g.As, Session: id, Messages: msgs, Accept: answer}, nil
	}
	m, err := g.searched(m)
	if err != nil {
		return sessions.Routed{}, err
	}
	t, err := g.target(ctx, id, m)
	if err == nil && t.Member == "" && t.Place == nil && m.Kind == wire.Request && wire.OfExtension(m.Method) {
		t.Member, err = g.owner(ctx, id, m)
	}
	switch {
	case err != nil:
		return sessions.Routed{}, err
	case t.Member != "":
		if m, err = t.Message(m); err != nil {
			return sessions.Routed{}, err
		}
		return g.to(id, t.Member, []wire.Message{m}, false)
	case m.Kind == wire.Request && t.Place != nil:
		return sessions.Routed{}, &wire.Error{Code: wire.CodeInvalidParams, Message: "no server here has what " + wire.Clip(m.Method) + " names"}
	case m.Kind == wire.Request:
		return sessions.Routed{}, noMethod(m.Method)
	}
	return sessions.Routed{Caller: g.As, Session: id, Messages: msgs, Accept: func(ctx context.Context) (sessions.Response, error) {
		if m.Kind != wire.Notification {
			return nil, nil // a response to a question that no member has asked is ignored
		}
		return nil, g.tell(ctx, id, m)
	}}, nil
}

// routeBatch routes a batch (2025-03-26). Its messages must all be for one member, or none of its
// requests may be for a member.
func (g *Group) routeBatch(ctx context.Context, id storage.ID, msgs []wire.Message) (sessions.Routed, error) {
	batch := sessions.Routed{Caller: g.As, Session: id, Messages: msgs, Batch: true}
	var routes []sessions.Routed
	var own []wire.Message
	one, asks := true, false // all are for one server, or for the group; a request is for a server
	for i, m := range msgs {
		r, err := g.Route(ctx, id, msgs[i:i+1], false)
		if answer, ok := errors.AsType[*wire.Error](err); ok {
			r = batch
			r.Accept = func(context.Context) (sessions.Response, error) { return nil, answer }
		} else if err != nil {
			return r, err
		}
		routes, own = append(routes, r), append(own, r.Messages...)
		one, asks = one && r.Session == routes[0].Session, asks || r.Session != id && m.Kind == wire.Request
	}
	switch {
	case asks && one:
		return g.to(id, routes[0].Caller.Server.Name, own, true)
	case asks:
		return batch, storage.Errorf(storage.Invalid, "the messages of this batch are not all for one server; send each in a request of its own")
	}
	batch.Accept = func(ctx context.Context) (sessions.Response, error) {
		var answers [][]byte
		for i, r := range routes {
			call, err := r.Accept(ctx)
			if answer, ok := errors.AsType[*wire.Error](err); ok {
				answers = append(answers, wire.ErrorResponse(msgs[i].ID, answer))
			} else if err != nil {
				return nil, err
			} else if call != nil {
				events, _ := call.Next(ctx, time.Now()) // the group's own answer is there at once
				answers = append(answers, events[0].Raw)
			}
		}
		if len(answers) == 0 {
			return nil, nil
		}
		return g.Host.Immediate(g.As, id, answers...), nil
	}
	return batch, nil
}

// to routes messages to a member. If the client has no session with the member yet, Accept opens it.
func (g *Group) to(id storage.ID, member string, msgs []wire.Message, batch bool) (sessions.Routed, error) {
	c, ok := g.member(member)
	if !ok {
		return sessions.Routed{}, forbidden(member)
	}
	at, own := g.Host.At(c), sessions.MemberID(id, member)
	accept := func(ctx context.Context) (sessions.Response, error) {
		r, err := at.Route(ctx, own, msgs, batch)
		if err != nil {
			return nil, err
		}
		return r.Accept(ctx)
	}
	return sessions.Routed{Caller: c, Session: own, Messages: msgs, Batch: batch, Accept: func(ctx context.Context) (sessions.Response, error) {
		stream, err := accept(ctx)
		if errors.Is(err, storage.NotFound) {
			if err = g.join(ctx, id, c); err == nil {
				stream, err = accept(ctx)
			}
		}
		if err != nil || stream == nil {
			return nil, err
		}
		return &response{renamed{stream, g.view(member)}, stream, id}, nil
	}}, nil
}

// tell passes a notification that names no member to each member that the session uses.
func (g *Group) tell(ctx context.Context, id storage.ID, m wire.Message) error {
	of, err := g.Host.Session(ctx, g.As, id)
	if err != nil {
		return err
	}
	for _, c := range g.joined(of) {
		_, err := g.Host.Accept(ctx, c, sessions.MemberID(id, c.Server.Name), []wire.Message{m}, false)
		if err := storage.IgnoreNotFound(err); err != nil {
			return err
		}
	}
	return nil
}

// End implements [sessions.Endpoint]. It ends the sessions with members, too.
func (g *Group) End(ctx context.Context, id storage.ID) error {
	of, _, err := g.Host.Load(ctx, g.As, id)
	if err != nil {
		return err
	}
	for _, c := range g.joined(of) {
		if err := storage.IgnoreNotFound(g.Host.End(ctx, c, sessions.MemberID(id, c.Server.Name))); err != nil {
			return err
		}
	}
	return g.Host.End(ctx, g.As, id)
}

// Say implements [sessions.Endpoint].
func (g *Group) Say(ctx context.Context, id storage.ID, answers ...[]byte) error {
	return g.Host.At(g.As).Say(ctx, id, answers...)
}
