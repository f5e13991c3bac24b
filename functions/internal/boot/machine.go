//go:build !aws

package boot

import (
	"time"

	"github.com/dormouse-mcp/dormouse/functions/wiring/kept"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/process"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/process/pooltest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// This file has what only functions under the emulator use. machine_aws.go replaces it in deployed
// functions.

// keptFolder removes workspaces from a folder on this machine.
var keptFolder = kept.Folder

const poolPlace = process.Place

func openPool(base string, since time.Time) (fleet.Fleet, error) {
	return pooltest.NewClient(base, since), nil
}

// sqliteForm is the form of EnvStore for SQLite.
const sqliteForm = "sqlite:PATH or "

func openSQLite(path string, limits sessions.Limits) (storage.Store, error) {
	return sqlitestore.Open(path, sqlitestore.Options{Age: limits.EventAge})
}
