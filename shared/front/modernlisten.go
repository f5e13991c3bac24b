package front

import (
	"errors"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// listen serves subscriptions/listen. While the response is held, it passes on the changes
// that the caller's process reports. The listener does not keep the process awake, and a
// sleeping process reports nothing.
func (m modern) listen() error {
	out := newReply(m.x, m.req)
	handshake, refused, err := m.greeting(out)
	if err != nil {
		return out.fail(err)
	}
	if refused != nil {
		out.finish(refused.Raw, refused.Code)
		return nil
	}
	return m.listenTo(out, handshake)
}

// listenTo serves subscriptions/listen for a server that has answered initialize like this.
func (m modern) listenTo(out *reply, handshake []byte) error {
	l, err := bridge.NewListener(m.req, handshake)
	if err == nil && m.x.servesTasks() {
		err = l.ReadTasks(m.req)
	}
	if err == nil {
		err = m.hear(out, l)
	}
	if err != nil {
		return out.fail(err)
	}
	return nil
}

// hear holds the response until its time is over and then ends it. A client that wants to
// hear more listens again.
func (m modern) hear(out *reply, l *bridge.Listener) error {
	// Watch comes before the subscription, because the process may answer a subscription
	// with a notification at once.
	call, err := m.x.opts.Host.Watch(m.x.ctx(), m.x.caller)
	if err != nil {
		return err
	}
	if uris := l.Resources(); len(uris) > 0 {
		subscription, err := m.x.opts.Host.Subscribe(m.x.ctx(), m.x.caller, m.client(), uris)
		if err != nil {
			return err
		}
		defer m.unsubscribe(uris)
		honoured, err := honoured(out, subscription, uris)
		if err != nil {
			return err
		}
		l.Honour(honoured)
	}
	of := m.tasks()
	watched, err := of.watch(l)
	if err != nil {
		return err
	}
	if err := out.notify(l.Acknowledged()); err != nil {
		return err
	}
	err = listening{x: m.x, out: out, l: l, of: of, tasks: watched}.to(call)
	if errors.Is(err, errLate) || errors.Is(err, errTold) {
		out.finish(l.End(), 0)
		return nil
	}
	return err
}

// honoured waits for the answers to a subscription and returns the resources that the server
// agreed to watch.
func honoured(out *reply, subscription *host.Call, uris []string) ([]string, error) {
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

// numbered returns the number of the request of a subscription that an event answers.
func numbered(e session.Event, stream session.StreamID) (i int, ok bool) {
	id, _ := wire.String(wire.Lookup(e.Raw, "id"))
	prefix := string(stream) + "-"
	if !isResponse(e.Raw) || len(id) <= len(prefix) || id[:len(prefix)] != prefix {
		return 0, false
	}
	i, err := strconv.Atoi(id[len(prefix):])
	return i, err == nil && i >= 0
}

// unsubscribe cancels a subscription, even if the client has gone. If that fails, the
// subscription stays until the process is started for another caller.
func (m modern) unsubscribe(uris []string) {
	ctx, cancel := m.x.detached()
	defer cancel()
	if err := m.x.opts.Host.Unsubscribe(ctx, m.x.caller, uris); err != nil && m.x.err == nil {
		m.x.err = err
	}
}
