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
	"github.com/dormouse-mcp/dormouse/shared/native/eventbridge"
)

// Env is the variable with eventbridge.Config as JSON. Without it the function keeps
// no alarms.
const Env = "DORMOUSE_SCHEDULES"

// Open reads the environment. It opens no connection.
func Open(f *boot.Function) (endpoints.Alarms, error) {
	text := os.Getenv(Env)
	if text == "" {
		return endpoints.Alarms{}, nil
	}
	var c eventbridge.Config
	err := json.Unmarshal([]byte(text), &c)
	if err == nil && (c.Group == "" || c.Target == "" || c.Role == "") {
		err = errors.New("want group, target and role")
	}
	if err != nil {
		return endpoints.Alarms{}, fmt.Errorf("%s: %w", Env, err)
	}
	c.Endpoint, c.Sign = boot.Scheduler()
	return endpoints.Alarms{
		Schedule: eventbridge.New(c),
		Invoke:   func(ctx context.Context, payload []byte) error { return f.Invoke(ctx, c.Target, payload) },
	}, nil
}
