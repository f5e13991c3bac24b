//go:build !aws

package boot

import (
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// sqliteForm is the form of EnvStore for SQLite.
const sqliteForm = "sqlite:PATH or "

func openSQLite(path string, limits sessions.Limits) (storage.Store, error) {
	return sqlitestore.Open(path, sqlitestore.Options{Age: limits.EventAge})
}
