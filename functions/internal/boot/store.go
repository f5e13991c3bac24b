package boot

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// storeForms lists the valid forms of EnvStore in this build.
const storeForms = sqliteForm + "dynamodb:" + dynamostore.LocationForm

// openStore opens the store that EnvStore names. The store keeps events for limits.EventAge. The
// function spent returns the capacity units that DynamoDB has charged; it is nil for SQLite.
func openStore(name string, limits sessions.Limits) (s storage.Store, spent func() meter.Stored, err error) {
	kind, where, _ := strings.Cut(name, ":")
	switch {
	case name == "":
		return nil, nil, fmt.Errorf("%s is not set; want %s", EnvStore, storeForms)
	case where == "":
		return nil, nil, fmt.Errorf("%s is %q; want %s", EnvStore, name, storeForms)
	case kind == "sqlite":
		s, err = openSQLite(where, limits)
	case kind == "dynamodb":
		s, spent, err = openTable(where, limits)
	default:
		return nil, nil, fmt.Errorf("%s is %q; want %s", EnvStore, name, storeForms)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", EnvStore, err)
	}
	return s, spent, nil
}

// openTable returns a store in an existing DynamoDB table. It does not use the config module of
// the AWS SDK, which would read files and profiles. A function has its region and credentials in
// the environment.
func openTable(where string, limits sessions.Limits) (storage.Store, func() meter.Stored, error) {
	location, err := dynamostore.ParseLocation(where, cmp.Or(os.Getenv(envRegion), os.Getenv("AWS_DEFAULT_REGION")))
	if err != nil {
		return nil, nil, err
	}
	location.Endpoint = cmp.Or(location.Endpoint, os.Getenv(envEndpoint))
	table := dynamostore.New(location.Client(credentials(), nil), location.Table, dynamostore.Options{Age: limits.EventAge, Life: limits.Life})
	return table, func() meter.Stored {
		u := table.Usage()
		return meter.Stored{ReadUnits: u.ReadUnits, WriteUnits: u.WriteUnits, Polls: u.WaitUnits}
	}, nil
}
