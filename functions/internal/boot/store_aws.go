//go:build aws

package boot

import (
	"fmt"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/mcp/host"
)

// sqliteForm is empty: a deployed function does not contain SQLite, which would be a
// third of the program.
const sqliteForm = ""

func openSQLite(string, host.Limits) (session.Store, error) {
	return nil, fmt.Errorf("this program was built for AWS (-tags aws), without SQLite; want %s", storeForms)
}
