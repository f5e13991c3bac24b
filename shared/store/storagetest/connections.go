package storagetest

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// aConnection returns a connection with every field filled.
func aConnection(id string) storage.Connection {
	return storage.Connection{
		ID: id, Session: "s1", Server: "everything", Tenant: "acme", Principal: "alice <é>", EventIDs: true, Credential: "k1", Scopes: []string{"mcp"}, Scoped: true, ToolRules: []string{"a*"}, Group: &storage.GroupConnection{Plain: true, Search: true, Members: map[string][]string{"everything": {"a*"}}}, Expires: future(),
	}
}

func connectionPromises() []promise {
	return []promise{
		{"a connection nobody has written is NotFound", func(t *testing.T, k *kit) {
			noError(t, "PutConnection", k.PutConnection(t.Context(), aConnection("c1=")))
			for _, id := range []string{"c2=", "c1", ""} {
				_, err := k.Connection(t.Context(), id)
				wantCode(t, "Connection "+id, err, storage.NotFound)
			}
		}},
		{"a connection is kept with every field", func(t *testing.T, k *kit) {
			want := aConnection("L0SM9cOFvHcCIhw=")
			filled(t, want)
			noError(t, "PutConnection", k.PutConnection(t.Context(), want))
			noError(t, "PutConnection of another", k.PutConnection(t.Context(), aConnection("x")))
			got, err := k.other(t).Connection(t.Context(), want.ID)
			noError(t, "Connection", err)
			same(t, "Connection", got, want)
		}},
		{"a connection is written over one with its id", func(t *testing.T, k *kit) {
			c := aConnection("c1=")
			noError(t, "PutConnection", k.PutConnection(t.Context(), c))
			c.Session, c.EventIDs = "s2", false
			for range 2 {
				noError(t, "PutConnection again", k.PutConnection(t.Context(), c))
			}
			got, err := k.Connection(t.Context(), "c1=")
			noError(t, "Connection", err)
			same(t, "Connection", got, c)
		}},
		{"an expired connection is not found", func(t *testing.T, k *kit) {
			c := aConnection("c1=")
			c.Expires = past()
			noError(t, "PutConnection", k.PutConnection(t.Context(), c))
			_, err := k.Connection(t.Context(), "c1=")
			wantCode(t, "Connection", err, storage.NotFound)
		}},
		{"a connection is deleted, and one that is not there too", func(t *testing.T, k *kit) {
			noError(t, "PutConnection", k.PutConnection(t.Context(), aConnection("c1=")))
			noError(t, "PutConnection", k.PutConnection(t.Context(), aConnection("c2=")))
			for range 2 {
				noError(t, "DeleteConnection", k.DeleteConnection(t.Context(), "c1="))
			}
			_, err := k.Connection(t.Context(), "c1=")
			wantCode(t, "Connection", err, storage.NotFound)
			_, err = k.Connection(t.Context(), "c2=")
			noError(t, "Connection of another", err)
		}},
	}
}
