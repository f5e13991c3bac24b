//go:build !aws

package boot

import (
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/process"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/process/pooltest"
)

const poolPlace = process.Place

func openPool(base string, since time.Time) (fleet.Fleet, error) {
	return pooltest.NewClient(base, since), nil
}
