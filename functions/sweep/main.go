// Command sweep is the Lambda function that reaps what was left behind: on a
// schedule, and when the fleet says that a task has stopped.
package main

import (
	"context"
	"encoding/json"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/relay"
)

// taskStopped is the detail type of an event of our own making about one task; a
// schedule has another.
const taskStopped = "Dormouse Task Stopped"

func main() {
	f, err := boot.Open()
	if err != nil {
		boot.Fail(err)
	}
	w := relay.NewSweeper(f.Relay)
	boot.Start(func(ctx context.Context, e events.CloudWatchEvent) error {
		if e.DetailType != taskStopped {
			return w.Sweep(ctx)
		}
		var t fleet.Status
		if err := json.Unmarshal(e.Detail, &t); err != nil {
			return err
		}
		return w.Stopped(ctx, t)
	})
}
