package dynamostore

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore/dynamotest"
)

// dynamoDB is the DynamoDB for the tests of this package.
var dynamoDB = dynamotest.Server{Running: os.Getenv(dynamotest.Variable)}

func TestMain(m *testing.M) {
	code := m.Run()
	dynamoDB.Stop()
	os.Exit(code)
}

// endpoint returns the URL of the DynamoDB under test.
func endpoint(t *testing.T) string {
	t.Helper()
	url, err := dynamoDB.Endpoint()
	commontest.OK(t, err)
	return url
}

// dial returns a client of the DynamoDB under test.
func dial(t *testing.T) *dynamodb.Client {
	t.Helper()
	return client(endpoint(t), nil)
}

// client returns a client; transport may be nil.
func client(url string, transport dynamodb.HTTPClient) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region: "us-east-1", BaseEndpoint: &url, HTTPClient: transport, Credentials: Keys{ID: "local", Secret: "local"},
	})
}

// newTable creates a table for one test. It has no TTL, so expired items stay.
func newTable(t *testing.T, c *dynamodb.Client) string {
	t.Helper()
	name := "t" + storage.NewNonce()
	create, _, err := TableDefinition(name)
	commontest.OK(t, err)
	_, err = c.CreateTable(t.Context(), create)
	commontest.OK(t, err)
	t.Cleanup(func() {
		_, err := c.DeleteTable(context.WithoutCancel(t.Context()), &dynamodb.DeleteTableInput{TableName: &name})
		commontest.Check(t, err)
	})
	return name
}

// open returns a Store on a table of its own. It is more patient than usual, because
// the machine may be busy.
func open(t *testing.T, o Options) *Store {
	t.Helper()
	if o.Patience == 0 {
		o.Patience = 5 * time.Minute
	}
	c := dial(t)
	return New(c, newTable(t, c), o)
}
