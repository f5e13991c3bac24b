// Package webconsole builds the console of a stack on AWS. It is separate from package endpoints
// because only one function serves the console.
package webconsole

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/apigateway"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/operate/bodies"
	"github.com/dormouse-mcp/dormouse/shared/operate/console"
)

// Handler returns the console of a Function. The argument schedule cancels alarms of native
// servers, and logs searches for calls; either may be nil. The page links to dashboardURL, for data
// that the store does not have. The page calls servers at their own endpoints, so the Lambda
// function of the console needs no right to start boxes.
func Handler(f *wiring.Function, schedule native.Scheduler, dashboardURL string, logs *Logs) http.Handler {
	own := endpoints.Operators(f, endpoints.Janitor(f, endpoints.Alarms{Schedule: schedule}))
	own.Info.URL, own.Info.Dashboard = f.PublicURL, dashboardURL
	own.NativeTools = nil // the native servers are in the HTTP function, not in this one
	if logs != nil {
		own.Calls, own.Info.SearchUSD = logs.Calls, perGB
		own.Bodies = func(ctx context.Context, q bodies.Query) ([]bodies.Body, error) {
			return logs.Bodies(ctx, q, f.Secret, f.Others()...)
		}
	}
	if f.Open {
		own.Info.Access = "open"
	}
	var signIn func() (name, endpoint string)
	if f.Access != nil && f.AuthServer {
		signIn = f.Access.SignIn
	}
	return console.New(console.Options{
		SignIn: signIn,
		Secret: f.Secret, Tickets: apikey.NewTickets(f.Store),
		Hosts: func(host string) bool { return transport.ServesHost(f.Hosts, host) },
		API: func(owner bool) http.Handler {
			o := own
			if owner {
				o.Caller = func(*http.Request, apikey.Right) (api.Caller, error) {
					return api.Machine("the operator of this machine"), nil
				}
			}
			return api.New(o)
		},
	})
}

// Function adapts a console to events of a REST API.
func Function(h http.Handler, log *slog.Logger) func(context.Context, events.APIGatewayProxyRequest) (*events.APIGatewayProxyStreamingResponse, error) {
	serve := apigateway.HTTP(h, log)
	return func(ctx context.Context, e events.APIGatewayProxyRequest) (*events.APIGatewayProxyStreamingResponse, error) {
		prefix, _ := apigateway.Place(e)
		return serve(console.Under(ctx, prefix), e)
	}
}
