//go:build aws

package boot

import (
	"errors"
	"fmt"
	"time"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// keptFolder is nil: a deployed function has no permanent folder, so the code for one is not
// linked.
var keptFolder func(path string) wiring.Forget

const poolPlace = "" // the emulator is not in this build

// openPool is called if EnvFleet is not set. It fails, because this build has no emulator.
func openPool(string, time.Time) (fleet.Fleet, error) {
	return nil, errors.New(EnvFleet + " is not set: deploy the stack")
}

// sqliteForm is empty: a deployed function does not contain SQLite, which would be a third of the
// program.
const sqliteForm = ""

func openSQLite(string, sessions.Limits) (storage.Store, error) {
	return nil, fmt.Errorf("this program was built for AWS (-tags aws), without SQLite; want %s", storeForms)
}
