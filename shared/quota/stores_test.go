package quota_test

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/dynamostore"
	"github.com/dormouse-mcp/dormouse/shared/dynamostore/dynamotest"
	"github.com/dormouse-mcp/dormouse/shared/quota"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sqlitestore"
)

// dynamoDB is what the tests of this package run against.
var dynamoDB = dynamotest.Server{Running: os.Getenv(dynamotest.Variable)}

func TestMain(m *testing.M) {
	code := m.Run()
	dynamoDB.Stop()
	os.Exit(code)
}

func onSQLite(t *testing.T) session.Store {
	s, err := sqlitestore.Open(filepath.Join(t.TempDir(), "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func onDynamoDB(t *testing.T) session.Store {
	endpoint, err := dynamoDB.Endpoint()
	if err != nil {
		t.Fatal(err)
	}
	place := dynamostore.Place{Table: "quota-" + session.NewNonce(), Region: "us-east-1", Endpoint: endpoint}
	keys := dynamostore.Keys{ID: "local", Secret: "local"}
	if err := place.EnsureTable(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	return dynamostore.New(place.Client(keys, nil), place.Table, dynamostore.Options{})
}

// The rates are so slow that no token comes while the test runs. Half of the instances
// have just started at each call.
func TestLimitsHoldOnTheRealStores(t *testing.T) {
	for name, open := range map[string]func(*testing.T) session.Store{"sqlite": onSQLite, "dynamodb": onDynamoDB} {
		t.Run(name, func(t *testing.T) {
			store := open(t)
			w := &world{t: t, file: `{"principal": "24/d burst 20", "tenant": "24/d burst 30", "concurrent": 25, "month_usd": 100}`}
			var passed [2]atomic.Int64
			var wg sync.WaitGroup
			for i := range 8 {
				l := w.instanceOn(store)
				wg.Go(func() {
					for range 10 {
						who := i % 2
						if i >= 4 {
							l = w.instanceOn(store)
						}
						if passes(t, l, by([]string{"ada", "bob"}[who], "acme")) {
							passed[who].Add(1)
						}
						l.Charge("acme", "", "files", costing(0.02), 1)
					}
				})
			}
			wg.Wait()
			ada, bob := passed[0].Load(), passed[1].Load()
			if ada > 20 || bob > 20 || ada+bob > 30 || ada+bob < 28 {
				t.Errorf("%d calls of ada passed, and %d of bob", ada, bob)
			}
			r, err := quota.Show(t.Context(), store, "acme")
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Used.Nanos[""]; got != 80*20_000_000 {
				t.Errorf("%d nanodollars, want %d", got, 80*20_000_000)
			}
			if _, err := quota.Set(t.Context(), store, "acme", []byte(`{"tenant": null}`)); err != nil {
				t.Fatal(err)
			}
			if !passes(t, w.instanceOn(store), by("eve", "acme")) {
				t.Error("the limit that was removed still holds")
			}
		})
	}
}
