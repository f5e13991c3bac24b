//go:build aws

package boot

import (
	"fmt"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// sqliteForm is empty: a deployed function does not contain SQLite, which would be a third of the
// program.
const sqliteForm = ""

func openSQLite(string, sessions.Limits) (storage.Store, error) {
	return nil, fmt.Errorf("this program was built for AWS (-tags aws), without SQLite; want %s", storeForms)
}
