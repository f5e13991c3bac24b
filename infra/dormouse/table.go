package dormouse

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
)

const dynamodb = "dynamodb:"

// useTable creates the table of a store on DynamoDB if it does not exist. It returns the name of
// the store with its region. The result more has environment variables with which the functions
// find the same table: DynamoDB Local has separate tables for each region and access key.
func useTable(ctx context.Context, store string) (name string, more []string, err error) {
	where, ok := strings.CutPrefix(store, dynamodb)
	if !ok {
		return store, nil, nil
	}
	location, err := dynamostore.ParseLocation(where, cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")))
	if err != nil {
		return "", nil, fmt.Errorf("--store %s: %w", store, err)
	}
	location.Endpoint = cmp.Or(location.Endpoint, os.Getenv("AWS_ENDPOINT_URL"))
	keys := dynamostore.Keys{
		ID: os.Getenv("AWS_ACCESS_KEY_ID"), Secret: os.Getenv("AWS_SECRET_ACCESS_KEY"), Token: os.Getenv("AWS_SESSION_TOKEN"),
	}
	if location.Endpoint != "" && keys.ID == "" { // DynamoDB Local accepts any key
		keys = dynamostore.Keys{ID: "local", Secret: "local"}
		more = []string{"AWS_ACCESS_KEY_ID=local", "AWS_SECRET_ACCESS_KEY=local"}
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := location.EnsureTable(ctx, keys); err != nil {
		return "", nil, fmt.Errorf("--store %s: %w", store, err)
	}
	return dynamodb + location.String(), more, nil
}
