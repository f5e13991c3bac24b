// Command sweep is the Lambda function that cleans up after lost boxes and requests.
// It runs on a schedule, and when the fleet reports that a task has stopped.
package main

import (
	"context"
	"errors"

	"github.com/dormouse-mcp/dormouse/functions/internal/alarms"
	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
)

func main() {
	boot.Serve(func(f *wiring.Function) (func(context.Context, event) (any, error), error) {
		a, err := alarms.Open()
		if err != nil {
			return nil, err
		}
		natives := endpoints.Janitor(f, a)
		c := f.RelayWithBucket()
		c.Elsewhere = natives.Owns
		w := relayserver.NewSweeper(c)
		handle := wiring.Event(f, nil, func(ctx context.Context, e event) error {
			t, isBox, scheduled, err := e.task()
			if scheduled {
				return errors.Join(w.Sweep(ctx), natives.Sweep(ctx))
			}
			// ECS also reports tasks that have not stopped yet.
			if err != nil || !isBox || t.State != fleet.Stopped {
				return err
			}
			f.Stopped(t)
			return w.Stopped(ctx, t)
		})
		return func(ctx context.Context, e event) (any, error) { return nil, handle(ctx, e) }, nil
	})
}
