// Command oauth is the Lambda function of the authorization server, behind the sign-in paths of
// the REST API.
package main

import (
	"context"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/authorization"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/apigateway"
)

func main() {
	boot.Serve(func(f *wiring.Function) (func(context.Context, events.APIGatewayProxyRequest) (*events.APIGatewayProxyStreamingResponse, error), error) {
		h, err := authorization.Handler(f)
		return apigateway.HTTP(h, f.Log), err
	})
}
