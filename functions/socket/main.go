// Command socket is the Lambda function behind the WebSocket API for MCP clients.
package main

import (
	"context"

	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/shared/front"
	"github.com/dormouse-mcp/dormouse/shared/relay"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

func main() {
	f, err := boot.Open()
	if err != nil {
		boot.Fail(err)
	}
	host := session.NewHost(f.Store, relay.NewBackend(f.Relay), f.Limits).WithClients(f.Relay.Clients)
	s := front.NewSocket(front.SocketOptions{
		Options: front.Options{
			Servers: f.Server, Host: host, AllowedHosts: f.Hosts, Log: f.Log,
			Auth: f.Auth, Tickets: f.Tickets,
		},
		// Nothing can be sent to a connection before this invocation has ended.
		Push: func(ctx context.Context, id session.ID) error {
			payload, err := front.PushEvent(id)
			if err != nil {
				return err
			}
			return f.InvokeSelf(ctx, payload)
		},
	})
	boot.Start(s.Lambda)
}
