package remote

import (
	"context"
	"net/http"
	"net/url"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// connect opens the stream of a server of HTTP+SSE, and a session on it (MCP 2024-11-05,
// "Transports", "HTTP with SSE").
func (x *exchange) connect(ctx context.Context) (*conversation, error) {
	talk, err := x.stream(ctx, http.MethodGet, x.url, nil, nil)
	if err != nil {
		return nil, err
	}
	if err := x.begin(ctx, talk); err != nil {
		talk.close()
		return nil, err
	}
	return talk, nil
}

// begin waits until the server names the URL for messages, and then sends initialize.
func (x *exchange) begin(ctx context.Context, talk *conversation) error {
	for talk.endpoint == nil {
		e, err := talk.next(ctx)
		if err != nil {
			return err
		}
		if e.Name != "endpoint" {
			continue
		}
		to, err := url.Parse(string(e.Data))
		if err != nil {
			return errMalformed
		}
		if to = x.url.ResolveReference(to); to.Scheme != x.url.Scheme || to.Host != x.url.Host {
			return errRedirect // the headers hold secrets
		}
		talk.endpoint = to
	}
	id := requestID()
	if err := x.tell(ctx, talk, wire.NewRequest(id, wire.MethodInitialize, bridge.Introduce(x.r.Init, x.r.Raw != nil))); err != nil {
		return err
	}
	if err := x.greeted(ctx, talk, id); err != nil {
		return err
	}
	return x.tell(ctx, talk, wire.NewNotification(wire.NotifyInitialized, nil))
}

// greetSSE opens a session only to find out whether the server speaks HTTP+SSE.
func (x *exchange) greetSSE(ctx context.Context) error {
	x.link.Session, x.link.Version = "", ""
	talk, err := x.connect(ctx)
	if err != nil {
		return err
	}
	talk.close()
	x.link.Era = eraSSE
	return nil
}
