//go:build aws

package boot

import (
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

const poolPlace = "" // there is none

// openPool fails, because only tests have an emulator.
func openPool(string, time.Time) (fleet.Fleet, error) {
	return nil, errors.New(EnvFleet + " is not set: deploy the stack")
}
