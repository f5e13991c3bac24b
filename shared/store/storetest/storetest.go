// Package storetest runs tests on each driver of [storage.Store]: SQLite, and DynamoDB. The tests may
// run in virtual time, in a bubble of package synctest. Requests to DynamoDB are sent from outside of
// the bubble.
package storetest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore/dynamotest"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// Open returns a new, empty store. The end of the test closes it.
type Open func(testing.TB) storage.Store

// server and outer serve all tests of a package.
var (
	server dynamotest.Server
	outer  = newOutside()
)

// Main is the TestMain of a package that uses DynamoDB. getenv gives the environment.
func Main(m *testing.M, getenv func(string) string) {
	server.Running = getenv(dynamotest.Variable)
	code := m.Run()
	server.Stop()
	os.Exit(code)
}

// Each runs a test on each driver. It is for tests with concurrent callers, and for tests of a whole
// request. [One] is enough for other tests.
func Each(t *testing.T, test func(t *testing.T, open Open)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) { test(t, SQLite) })
	t.Run("DynamoDB", func(t *testing.T) { test(t, DynamoDB) })
}

// One runs a test on SQLite.
func One(t *testing.T, test func(t *testing.T, open Open)) {
	t.Helper()
	test(t, SQLite)
}

// InTime runs a test on SQLite in virtual time, in a bubble of package synctest.
func InTime(t *testing.T, test func(t *testing.T, open Open)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, SQLite) })
}

// SQLite opens a store in a new file.
func SQLite(t testing.TB) storage.Store {
	t.Helper()
	store, err := sqlitestore.Open(filepath.Join(t.TempDir(), "store.db"))
	commontest.OK(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// DynamoDB opens a store on a new table.
func DynamoDB(t testing.TB) storage.Store {
	t.Helper()
	return Table(t)(dynamostore.Options{})
}

// Table makes a new table. The function open opens a store on it, also in a synctest bubble.
func Table(t testing.TB) (open func(dynamostore.Options) *dynamostore.Store) {
	t.Helper()
	keys := dynamostore.Keys{ID: "local", Secret: "local"}
	location := dynamostore.Location{Table: "test-" + storage.NewNonce(), Region: "us-east-1"}
	var err error
	outer.do(func() {
		if location.Endpoint, err = server.Endpoint(); err == nil {
			err = location.EnsureTable(context.Background(), keys) //nolint:usetesting // t's context is of a synctest bubble
		}
	})
	commontest.OK(t, err)
	return func(o dynamostore.Options) *dynamostore.Store {
		return dynamostore.New(location.Client(keys, outer), location.Table, o)
	}
}
