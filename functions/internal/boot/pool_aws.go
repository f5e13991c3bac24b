//go:build aws

package boot

import (
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

const poolPlace = "" // the emulator is not in this build

// openPool is called if EnvFleet is not set. It fails, because this build has no emulator.
func openPool(string, time.Time) (fleet.Fleet, error) {
	return nil, errors.New(EnvFleet + " is not set: deploy the stack")
}
