//go:build !aws

package boot

import (
	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/mcp/host"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// sqliteForm is the first of the valid forms of DORMOUSE_STORE.
const sqliteForm = "sqlite:PATH or "

func openSQLite(path string, limits host.Limits) (session.Store, error) {
	return sqlitestore.Open(path, sqlitestore.Options{Age: limits.EventAge})
}
