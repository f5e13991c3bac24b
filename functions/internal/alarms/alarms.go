// Package alarms reads how a Lambda function sets the alarms of native servers. It is separate from
// package boot because it links the MCP Go SDK, which the relay function does not need.
package alarms

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/backend/native/eventbridge"
)

// Env is the environment variable with an eventbridge.Scheduler in JSON. Without it, the Lambda
// function sets no alarms.
const Env = "DORMOUSE_SCHEDULES"

// Open returns the Alarms that the environment describes.
func Open() (endpoints.Alarms, error) {
	c, err := read()
	if c == nil {
		return endpoints.Alarms{}, err
	}
	return endpoints.Alarms{
		Schedule: c,
		Invoke:   func(ctx context.Context, payload []byte) error { return boot.Invoke(ctx, c.Target, payload) },
	}, nil
}

// Scheduler returns only the scheduler of [Open]. It is for a Lambda function that may not invoke
// another one: it cancels alarms of the sessions that it ends, and executes none.
func Scheduler() (native.Scheduler, error) {
	c, err := read()
	if c == nil {
		return nil, err
	}
	return c, nil
}

func read() (*eventbridge.Scheduler, error) {
	text := os.Getenv(Env)
	if text == "" {
		return nil, nil //nolint:nilnil // alarms are optional
	}
	var c eventbridge.Scheduler
	err := json.Unmarshal([]byte(text), &c)
	if err == nil && (c.Group == "" || c.Target == "" || c.Role == "") {
		err = errors.New("want group, target and role")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Env, err)
	}
	c.Service = boot.Service("scheduler")
	return &c, nil
}
