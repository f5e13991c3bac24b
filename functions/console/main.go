// Command console is the Lambda function that serves the console, at /console/ of the REST API.
package main

import (
	"context"
	"os"
	"strings"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/functions/internal/alarms"
	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/webconsole"
)

func main() {
	boot.Serve(func(f *wiring.Function) (func(context.Context, events.APIGatewayProxyRequest) (*events.APIGatewayProxyStreamingResponse, error), error) {
		schedule, err := alarms.Scheduler()
		if err != nil {
			return nil, err
		}
		return webconsole.Function(webconsole.Handler(f, schedule, os.Getenv(boot.EnvDashboard), logs()), f.Log), nil
	})
}

// logs returns the log groups in which the console searches for calls, or nil if there are none.
func logs() *webconsole.Logs {
	groups := strings.Split(os.Getenv(boot.EnvCallLogs), ",")
	last := len(groups) - 1
	if last < 1 {
		return nil
	}
	return &webconsole.Logs{Service: boot.Service("logs"), Groups: groups[:last], Relay: groups[last]}
}
