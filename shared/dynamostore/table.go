package dynamostore

import (
	_ "embed"
	"encoding/json"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// properties are those of the table as an AWS::DynamoDB::Table has them in
// CloudFormation: what a template says must be this.
//
//go:embed table.json
var properties []byte

// The indexes. Both are sparse, and small: they hold keys, so that a record that
// is saved again does not cost a write to them.
const (
	tenantIndex = "tenant" // sessions by tenant, and API keys, with their expiry
	dueIndex    = "due"    // records of boxes that are not asleep, and items
)

// TableDefinition is the table a [Store] works on: the requests that create it
// and that switch on the deletion of what has expired. It says the same as
// table.json, the properties of an AWS::DynamoDB::Table.
//
// Errors: Internal if table.json is not right.
func TableDefinition(table string) (*dynamodb.CreateTableInput, *dynamodb.UpdateTimeToLiveInput, error) {
	create := dynamodb.CreateTableInput{}
	live := dynamodb.UpdateTimeToLiveInput{}
	var rest struct {
		TimeToLiveSpecification *types.TimeToLiveSpecification
	}
	for _, into := range []any{&create, &rest} {
		if err := json.Unmarshal(properties, into); err != nil {
			return nil, nil, session.Errorf(session.Internal, "the definition of the table cannot be read").Because(err)
		}
	}
	create.TableName, live.TableName = &table, &table
	live.TimeToLiveSpecification = rest.TimeToLiveSpecification
	return &create, &live, nil
}
