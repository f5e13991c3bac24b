// Command http is the Lambda function behind the REST API: every HTTP client.
package main

import (
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
	host := session.NewHost(f.Store, relay.NewBackend(f.Relay), f.Limits)
	boot.Start(front.Lambda(front.New(front.Options{
		Servers: f.Server, Host: host, AllowedHosts: f.Hosts, Log: f.Log,
		Auth: f.Auth, Tickets: f.Tickets, Sealer: f.States,
	})))
}
