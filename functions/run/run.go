// Package run is the functions as an author of native servers builds them: a main
// that calls one of these with its servers is all of a program of their own.
//
//	func main() { run.HTTP(native.Servers{"hello": hello}) }
//
// It reads the environment as every function does (see template.yaml), and returns
// when the process is to end.
package run

import (
	"context"
	"encoding/json"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/functions/internal/inplace"
	"github.com/dormouse-mcp/dormouse/shared/front"
	"github.com/dormouse-mcp/dormouse/shared/native"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// event is what the function for HTTP is invoked with: a request of the REST API, one
// of somebody who calls the function itself, or an alarm of a native server. What a
// client sends is inside of a request, never at the top of an event.
type event struct {
	front.Event
	Alarm  *native.Alarm
	Caller *native.Caller
}

// UnmarshalJSON decodes valid JSON.
func (e *event) UnmarshalJSON(raw []byte) error {
	return front.DecodeEvent(raw, &e.Event, func(key string, value json.RawMessage) error {
		switch key {
		case "dormouseAlarm":
			return json.Unmarshal(value, &e.Alarm)
		case "dormouseCaller":
			return json.Unmarshal(value, &e.Caller)
		}
		return nil
	})
}

// HTTP is the function behind the REST API, and the one that alarms invoke.
func HTTP(servers native.Servers) {
	f, err := boot.Open()
	if err != nil {
		boot.Fail(err)
	}
	backend, err := inplace.Backend(f, servers)
	if err != nil {
		boot.Fail(err)
	}
	serve := front.Lambda(native.Handler(front.New(front.Options{
		Servers: f.Server, Unserved: f.Catalog.Reason, Host: session.NewHost(f.Store, backend, f.Limits), AllowedHosts: f.Hosts, Log: f.Log, Meter: f.Meter,
		Auth: native.Callers{Next: f.Auth}, Tickets: f.Tickets, Sealer: f.States,
	})))
	alarm := boot.Event(f, func(a native.Alarm) session.Account {
		s, _ := f.Server(a.Server) // a name that is not configured would be a metric of its own
		return session.Account{Tenant: a.Tenant, Server: s.Name, Session: a.Session}
	}, backend.Handle)
	boot.Start(func(ctx context.Context, e event) (*events.APIGatewayProxyStreamingResponse, error) {
		if e.Alarm != nil {
			return &events.APIGatewayProxyStreamingResponse{}, alarm(ctx, *e.Alarm)
		}
		if e.Caller != nil {
			var err error
			if ctx, err = e.Caller.In(ctx); err != nil {
				return nil, err
			}
		}
		return serve(ctx, e.APIGatewayProxyRequest)
	})
}

// Socket is the function behind the WebSocket API for clients.
func Socket(servers native.Servers) {
	f, err := boot.Open()
	if err != nil {
		boot.Fail(err)
	}
	backend, err := inplace.Backend(f, servers)
	if err != nil {
		boot.Fail(err)
	}
	s := front.NewSocket(front.SocketOptions{
		Options: front.Options{
			Servers: f.Server, Unserved: f.Catalog.Reason, Host: session.NewHost(f.Store, backend, f.Limits).WithClients(f.Relay.Clients), AllowedHosts: f.Hosts,
			Log: f.Log, Auth: f.Auth, Tickets: f.Tickets, Meter: f.Meter,
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
	boot.Start(func(ctx context.Context, e front.SocketEvent) (events.APIGatewayProxyResponse, error) {
		return native.Stay(ctx, func(ctx context.Context) (events.APIGatewayProxyResponse, error) { return s.Lambda(ctx, e) })
	})
}
