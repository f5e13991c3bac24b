package ecs

import (
	"encoding/json"
	"fmt"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

// ParsePlace reads a Config from the form that template.yaml writes: one JSON object whose keys
// are the fields of Config and of Size with a small first letter. The key endpoint is only for
// a stack that is not on AWS; on AWS the caller sets Endpoint. The caller also sets
// Credentials, HTTPClient, RunnerURL, Inspect and Shape. Errors: fleet.ErrInvalid for text of
// another form; [New] checks the values.
func ParsePlace(text string) (Config, error) {
	var p struct {
		Config
		Size
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return Config{}, fmt.Errorf("%w: the description of the place is not as the template writes it: %w", fleet.ErrInvalid, err)
	}
	p.Config.Size = p.Size
	return p.Config, nil
}
