package dynamostore

import (
	_ "embed"
	"encoding/json"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// properties define the table as the Properties of an AWS::DynamoDB::Table do. A template
// for CloudFormation must have the same Properties.
//
//go:embed table.json
var properties []byte

// The indexes. Both are sparse and hold only keys, so that saving a record again does
// not cost a write to them.
const (
	tenantIndex = "tenant" // sessions by tenant, and API keys, grants and upstream tokens; with their expiry
	dueIndex    = "due"    // records of boxes that are not asleep, and items
)

// TableDefinition returns the requests that create the table of a [Store] and switch on the
// deletion of expired items (TTL).
//
// Errors: Internal if table.json cannot be read.
func TableDefinition(table string) (*dynamodb.CreateTableInput, *dynamodb.UpdateTimeToLiveInput, error) {
	create := dynamodb.CreateTableInput{}
	live := dynamodb.UpdateTimeToLiveInput{}
	var rest struct {
		TimeToLiveSpecification *types.TimeToLiveSpecification
	}
	for _, into := range []any{&create, &rest} {
		if err := json.Unmarshal(properties, into); err != nil {
			return nil, nil, storage.Errorf(storage.Internal, "the definition of the table cannot be read").Because(err)
		}
	}
	create.TableName, live.TableName = &table, &table
	live.TimeToLiveSpecification = rest.TimeToLiveSpecification
	return &create, &live, nil
}
