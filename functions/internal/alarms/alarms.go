// Package alarms reads where a function keeps the alarms of native servers. It is separate
// from package boot because it links go-sdk. The relay function does not need go-sdk.
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

// Env is the variable with eventbridge.Config as JSON. Without it the function keeps
// no alarms.
const Env = "DORMOUSE_SCHEDULES"

// Open returns the Alarms that the environment describes. It opens no connection.
func Open() (endpoints.Alarms, error) {
	c, err := read()
	if c == nil {
		return endpoints.Alarms{}, err
	}
	return endpoints.Alarms{
		Schedule: eventbridge.New(*c),
		Invoke:   func(ctx context.Context, payload []byte) error { return boot.Invoke(ctx, c.Target, payload) },
	}, nil
}

// Scheduler returns the scheduler of [Open] for a function that ends sessions and starts
// nothing. Such a function has no right to invoke another one.
func Scheduler() (native.Scheduler, error) {
	c, err := read()
	if c == nil {
		return nil, err
	}
	return eventbridge.New(*c), nil
}

// read reads the configuration from [Env]. It returns nil if the function keeps no alarms.
func read() (*eventbridge.Config, error) {
	text := os.Getenv(Env)
	if text == "" {
		return nil, nil //nolint:nilnil // a function without alarms is no error
	}
	var c eventbridge.Config
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
