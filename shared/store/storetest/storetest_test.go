package storetest_test

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m, os.Getenv) }

// Only virtual time passes: the value lives for a day, and the test does not.
func TestStoresLiveInVirtualTime(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open storetest.Open) {
		synctest.Test(t, func(t *testing.T) { livesInVirtualTime(t, open(t)) })
	})
}

func livesInVirtualTime(t *testing.T, store storage.Store) {
	begun := time.Now()
	key := storage.ValueKey{Tenant: "t", Server: "s", Scope: storage.ValueOfServer, Name: "n"}
	if _, err := store.SaveValue(t.Context(), storage.Value{Key: key, Data: []byte("x"), Expires: time.Now().Add(24 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took != 0 {
		t.Errorf("the clock moved by %s while the store worked", took)
	}
	time.Sleep(24*time.Hour - time.Minute)
	if v, err := store.LoadValue(t.Context(), key); err != nil || string(v.Data) != "x" {
		t.Errorf("before its end: %q, %v", v.Data, err)
	}
	time.Sleep(2 * time.Minute)
	if v, err := store.LoadValue(t.Context(), key); err != nil || len(v.Data) > 0 {
		t.Errorf("after its end: %q, %v", v.Data, err)
	}
}
