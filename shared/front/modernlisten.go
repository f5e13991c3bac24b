package front

import (
	"errors"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// subscribe serves subscriptions/listen: what the process of the caller says of
// changes while the response is held. The process is not kept awake for it, and
// says nothing while it sleeps.
func (x *exchange) subscribe(req bridge.Request) error {
	out := x.reply(req)
	handshake, refused, err := x.greeting(out, req)
	if err != nil {
		return out.fail(err)
	}
	if refused != nil {
		out.finish(refused.Raw, refused.Code)
		return nil
	}
	l, err := bridge.NewListener(req, handshake)
	if err == nil && x.tasks() {
		err = l.ReadTasks(req)
	}
	if err == nil {
		err = x.listens(out, req, l)
	}
	if err != nil {
		return out.fail(err)
	}
	return nil
}

// listens holds the response until its time is over, and ends it then; a client
// that wants to hear more listens anew.
func (x *exchange) listens(out *reply, req bridge.Request, l *bridge.Listener) error {
	// Before the process is told: what it says at once is not to be missed.
	call, err := x.opts.Host.Watch(x.ctx(), x.caller)
	if err != nil {
		return err
	}
	if uris := l.Resources(); len(uris) > 0 {
		subscription, err := x.opts.Host.Subscribe(x.ctx(), x.caller, client(req), uris)
		if err != nil {
			return err
		}
		defer x.unsubscribe(uris)
		honoured, err := honoured(out, subscription, uris)
		if err != nil {
			return err
		}
		l.Honour(honoured)
	}
	tasks, err := x.watchTasks(req, l)
	if err != nil {
		return err
	}
	if err := out.notify(l.Acknowledged()); err != nil {
		return err
	}
	hears := listening{x: x, out: out, l: l, tasks: tasks}
	err = hears.to(call)
	if errors.Is(err, errLate) || errors.Is(err, errTold) {
		out.finish(l.End(), 0)
		return nil
	}
	return err
}

// honoured waits for the answers to a subscription and returns the resources of
// which the server has agreed to tell.
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

// numbered says which of the requests of a subscription an event answers.
func numbered(e session.Event, stream session.StreamID) (i int, ok bool) {
	id, _ := wire.String(wire.Lookup(e.Raw, "id"))
	prefix := string(stream) + "-"
	if !isResponse(e.Raw) || len(id) <= len(prefix) || id[:len(prefix)] != prefix {
		return 0, false
	}
	i, err := strconv.Atoi(id[len(prefix):])
	return i, err == nil && i >= 0
}

// unsubscribe takes a subscription back, also when the client has gone. What fails
// stays until the process is started for another caller.
func (x *exchange) unsubscribe(uris []string) {
	ctx, cancel := x.detached()
	defer cancel()
	if err := x.opts.Host.Unsubscribe(ctx, x.caller, uris); err != nil && x.err == nil {
		x.err = err
	}
}
