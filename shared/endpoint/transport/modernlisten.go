package transport

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/group"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// listen serves subscriptions/listen at the servers that may have something to report. While
// the response is held, it passes on the changes that the caller's processes report. A
// listener does not keep a process awake, and a sleeping process reports nothing.
func (m modern) listen(endpoint sessions.Endpoint, kind string) error {
	out := newReply(m)
	to, err := endpoint.Dispatch(m.ctx, kind, m.req.Message)
	if err != nil {
		return out.fail(err)
	}
	if len(to) == 1 && to[0].Greeting == nil { // an endpoint of one server sets no Greeting, so look for the server's answer to initialize
		greeting, refused, err := m.greeting(endpoint, kind, out)
		if err != nil {
			return out.fail(err)
		}
		if refused != nil {
			out.finish(refused.Raw, refused.Code)
			return nil
		}
		m.to = to[0]
		m.to.Greeting = greeting
		return m.hear(out)
	}
	greeting, _, err := endpoint.Greeting(m.ctx, kind, m.client())
	if err != nil {
		return out.fail(err)
	}
	l, err := bridge.NewListener(m.req, greeting)
	if err != nil {
		return out.fail(err)
	}
	ctx, cancel := context.WithCancel(m.ctx)
	said, all := make(chan []byte), make(chan struct{})
	var listeners sync.WaitGroup
	defer listeners.Wait()
	defer cancel()
	for _, d := range to {
		own := newModern(m.x, ctx, m.req, d)
		listeners.Go(func() {
			acked := false // the server has sent its first message, which acknowledges or refuses
			into := newReply(own)
			into.into = func(raw []byte) error {
				if acked { // the client gets no change before all servers have acknowledged
					select {
					case <-all:
					case <-ctx.Done():
						return errGone
					}
				}
				acked = true
				select {
				case said <- raw:
					return nil
				case <-ctx.Done():
					return errGone
				}
			}
			if err := own.hear(into); err != nil {
				_ = into.into(wire.ErrorResponse(own.req.ID, problemOf(err).rpc)) // after an error there is no response to write to
			}
		})
	}
	acks, open := group.Acks{}, len(to)
	for waiting := open; waiting > 0; waiting-- {
		raw, err := waitFor(out, said)
		if err != nil {
			return out.fail(err)
		}
		if method, _ := wire.String(wire.Lookup(raw, "method")); method == wire.NotifyAcknowledged {
			acks.Add(raw)
		} else { // the server refuses, so nothing is read from it
			open--
		}
	}
	if err := out.notify(acks.Message(m.req.ID)); err != nil {
		return out.fail(err)
	}
	for close(all); ; {
		raw, err := waitFor(out, said)
		switch {
		case errors.Is(err, errLate):
			out.finish(l.End(), 0)
			return nil
		case err != nil:
			return out.fail(err)
		case wire.Lookup(raw, "method") != nil:
			if err := out.notify(raw); err != nil {
				return out.fail(err)
			}
		default:
			if open--; open <= 0 {
				out.finish(l.End(), 0)
				return nil
			}
		}
	}
}

// hear listens at one server, which has answered initialize with m.to.Greeting, until the time of
// the response is over.
func (m modern) hear(out *reply) error {
	l, err := bridge.NewListener(m.req, m.to.Greeting)
	if err == nil && m.servesTasks() {
		err = l.ReadTasks(m.req)
	}
	if err == nil {
		err = m.hearTo(out, l)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errLate) || errors.Is(err, errTold):
		out.finish(l.End(), 0)
		return nil
	default:
		return out.fail(err)
	}
}

func (m modern) hearTo(out *reply, l *bridge.Listener) error {
	// Watch comes before the subscription, because the process may answer a subscription
	// with a notification at once.
	call, err := m.x.opts.Host.Watch(m.ctx, m.to.Caller)
	if err != nil {
		return err
	}
	if uris := l.Resources(); len(uris) > 0 {
		subscription, err := m.x.opts.Host.Subscribe(m.ctx, m.to.Caller, m.client(), uris)
		if err != nil {
			return err
		}
		defer m.unsubscribe(out, uris)
		honoured, err := honoured(out, subscription, uris)
		if err != nil {
			return err
		}
		l.Honour(honoured)
	}
	watched, err := m.watch(l)
	if err != nil {
		return err
	}
	if err := out.notify(l.Acknowledged()); err != nil {
		return err
	}
	return listening{m: m, out: out, l: l, tasks: watched}.to(call)
}

// honoured waits for the answers to a subscription and returns the resources that the server
// agreed to watch.
func honoured(out *reply, subscription *sessions.Call, uris []string) ([]string, error) {
	var agreed []string
	for open := len(uris); open > 0; {
		events, err := out.next(subscription)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			i, answered := numbered(e, subscription.Stream())
			if !answered {
				continue
			}
			open--
			if i < len(uris) && wire.Lookup(e.Raw, "result") != nil {
				agreed = append(agreed, uris[i])
			}
		}
	}
	return agreed, nil
}

// numbered reads which request of a subscription an event answers. The id of a request is the name
// of the subscription's stream, "-", and the index of the request.
func numbered(e storage.Event, stream storage.StreamID) (i int, ok bool) {
	id, _ := wire.String(wire.Lookup(e.Raw, "id"))
	index, ours := strings.CutPrefix(id, string(stream)+"-")
	i, err := strconv.Atoi(index)
	return i, ours && isResponse(e.Raw) && err == nil && i >= 0
}

// unsubscribe cancels a subscription, even if the client has gone.
func (m modern) unsubscribe(out *reply, uris []string) {
	ctx, cancel := m.x.detached()
	defer cancel()
	if err := m.x.opts.Host.Unsubscribe(ctx, m.to.Caller, uris); err != nil && out.into == nil && m.x.err == nil {
		m.x.err = err
	}
}
