package aggregate

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/group"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Initialize implements [sessions.Endpoint].
func (g *Group) Initialize(ctx context.Context, id storage.ID, m wire.Message) (storage.ID, sessions.Response, error) {
	s, call, err := g.Host.Greet(ctx, g.As, id, m, func(version string) (json.RawMessage, error) {
		greeting, _, err := g.greeting(ctx, version, declared(m.Params))
		if err != nil {
			return nil, err
		}
		return append([]byte(`{"protocolVersion":"`+version+`",`), greeting[1:]...), nil
	})
	if err != nil {
		return "", nil, err
	}
	return s.ID, call.ForClient(g.As, s.ID), nil
}

// greeting joins the members' answers to initialize. whole reports whether all of them are known.
func (g *Group) greeting(ctx context.Context, version string, client bridge.Request) (greeting json.RawMessage, whole bool, err error) {
	known, err := g.greetings(ctx, version, client)
	if err != nil {
		return nil, false, err
	}
	members := g.lists(known)
	whole = !slices.ContainsFunc(members, func(m group.List) bool { return m.Result == nil })
	return group.Greeting(g.names, g.Plain, members...), whole, nil
}

// firstGreetings is how long the first answer to a client waits for members without a box. It must
// be below 10 s, after which clients that probe take a silent server for one of the legacy era.
const firstGreetings = 5 * time.Second

// greetings returns the members' answers to initialize, as far as the store has them. It asks members
// without a box, whose answers are not stored, on behalf of the client. No process starts.
func (g *Group) greetings(ctx context.Context, version string, client bridge.Request) ([]sessions.Known, error) {
	known, err := g.Host.Greetings(ctx, g.Members, version)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(firstGreetings)
	var asks sync.WaitGroup
	for i, c := range g.Members {
		if known[i].Result != nil || !c.Server.InPlace {
			continue
		}
		c.Transport, c.Conn, c.Kind = storage.Modern, "", client.Kind()
		asks.Go(func() {
			result, call, err := g.Host.Greeting(ctx, c, sessions.Client{Init: client.Init()})
			if err == nil && call != nil {
				result, err = answerOf(ctx, call, until)
			}
			if err == nil { // after an error the member stays unknown; requests for its lists report the reason
				known[i].Result = result
			}
		})
	}
	asks.Wait()
	return known, nil
}

// declared returns a request of a modern client that declares what a legacy client has declared in its
// initialize.
func declared(init json.RawMessage) bridge.Request {
	return bridge.Request{Capabilities: wire.Lookup(init, "capabilities"), Client: wire.Lookup(init, "clientInfo")}
}

// declaredIn returns what a modern client declares in m. Nothing has checked the form of m's
// params.
func declaredIn(m wire.Message) bridge.Request {
	meta := wire.Lookup(m.Params, "_meta")
	return bridge.Request{Capabilities: wire.Lookup(meta, wire.MetaClientCapabilities), Client: wire.Lookup(meta, wire.MetaClientInfo)}
}

func (g *Group) lists(known []sessions.Known) []group.List {
	lists := make([]group.List, len(known))
	for i, k := range known {
		lists[i] = group.List{Member: g.Members[i].Server.Name, Result: k.Result}
	}
	return lists
}

// own returns the function that answers m if the group itself answers m. It returns nil if m goes to
// members.
func (g *Group) own(id storage.ID, m wire.Message) func(ctx context.Context) (sessions.Response, error) {
	result := func(of func(ctx context.Context) (json.RawMessage, error)) func(ctx context.Context) (sessions.Response, error) {
		return func(ctx context.Context) (sessions.Response, error) {
			result, err := of(ctx)
			if err != nil {
				return nil, err
			}
			return g.Host.Immediate(g.As, id, wire.ResultResponse(m.ID, result)), nil
		}
	}
	switch {
	case m.Method == wire.NotifyInitialized, m.Method == wire.MethodPing && m.Kind == wire.Request:
		return func(ctx context.Context) (sessions.Response, error) {
			call, err := g.Host.Accept(ctx, g.As, id, []wire.Message{m}, false)
			if err != nil || call == nil {
				return nil, err
			}
			return call.ForClient(g.As, id), nil
		}
	case m.Kind != wire.Request:
		return nil
	case g.answersList(m):
		return result(func(ctx context.Context) (json.RawMessage, error) {
			s, err := g.Host.Session(ctx, g.As, id)
			if err != nil {
				return nil, err
			}
			return g.list(ctx, m, s, nil)
		})
	case m.Method == wire.MethodSetLevel:
		return result(func(ctx context.Context) (json.RawMessage, error) {
			level, _ := wire.String(wire.Lookup(m.Params, "level"))
			if err := bridge.CheckLevel(wire.Clip(level)); err != nil {
				return nil, err
			}
			return json.RawMessage("{}"), g.Host.SetLevel(ctx, g.As, id, g.Members, m)
		})
	}
	return nil
}

// answersList reports whether m is a request for a list or a call of find_tools; see the method list.
func (g *Group) answersList(m wire.Message) bool {
	return isListed(m.Method) || g.Search && calls(m, toolFind)
}
