// Command oauth is the Lambda function behind the sign-in paths of the REST API: the
// authorization server.
package main

import (
	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/functions/wiring/authserver"
	"github.com/dormouse-mcp/dormouse/shared/front/lambdafront"
)

func main() {
	f, err := boot.Open()
	if err != nil {
		boot.Fail(err)
	}
	h, err := authserver.Handler(f.Function)
	if err != nil {
		boot.Fail(err)
	}
	boot.Start(lambdafront.HTTP(h))
}
