package transport

import (
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

func (m modern) discover(endpoint sessions.Endpoint, kind string) error {
	out := newReply(m)
	greeting, refused, err := m.greeting(endpoint, kind, out)
	switch {
	case err != nil:
		return out.fail(err)
	case refused != nil:
		out.finish(refused.Raw, refused.Code)
	default:
		out.finish(wire.ResultResponse(m.req.ID, bridge.Discover(greeting, m.servesTasks())), 0)
	}
	return nil
}

// greeting finds the answer of an endpoint to initialize. If none is stored, the server starts. The
// start goes on after the client has left or was answered; the next client gets the stored answer. The
// result refused is the server's error response to initialize.
func (m modern) greeting(endpoint sessions.Endpoint, kind string, out *reply) (greeting []byte, refused *bridge.Response, err error) {
	result, call, err := endpoint.Greeting(m.ctx, kind, m.client())
	if err != nil || call == nil {
		return result, nil, err
	}
	turn := bridge.NewTurn(m.req, call.Stream(), nil, bridge.State{})
	for {
		events, err := out.until(call, m.x.begun.Add(firstDiscover))
		switch {
		case err != nil:
			return nil, nil, err
		case len(events) == 0 && call.Done():
			return nil, nil, errOver
		case len(events) == 0 && time.Since(m.x.begun) >= firstDiscover:
			return bridge.Unknown(), nil, nil
		}
		for _, e := range events {
			switch step := turn.Take(e); {
			case step.Reply == nil:
			case step.Reply.Code != 0:
				return nil, step.Reply, nil
			default:
				return wire.Lookup(e.Raw, "result"), nil, nil
			}
		}
	}
}

// firstDiscover is how long the first server/discover of a server waits for the server to start.
// Python's and Rust's clients take a server for one of the legacy era if it is silent for 10 s.
const firstDiscover = 5 * time.Second
