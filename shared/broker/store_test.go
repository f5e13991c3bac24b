package broker_test

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/auth"
	"github.com/dormouse-mcp/dormouse/shared/broker"
	"github.com/dormouse-mcp/dormouse/shared/dynamostore"
	"github.com/dormouse-mcp/dormouse/shared/dynamostore/dynamotest"
	"github.com/dormouse-mcp/dormouse/shared/oauth"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sqlitestore"
)

// dynamoDB is the DynamoDB for the tests of this package.
var dynamoDB = dynamotest.Server{Running: os.Getenv(dynamotest.Variable)}

func TestMain(m *testing.M) {
	code := m.Run()
	dynamoDB.Stop()
	os.Exit(code)
}

func TestGrantsHoldOnSQLite(t *testing.T) {
	store, err := sqlitestore.Open(filepath.Join(t.TempDir(), "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	grantsHold(t, store)
}

func TestGrantsHoldOnDynamoDB(t *testing.T) {
	endpoint, err := dynamoDB.Endpoint()
	if err != nil {
		t.Fatal(err)
	}
	keys := dynamostore.Keys{ID: "local", Secret: "local"}
	place := dynamostore.Place{Table: "grants-" + session.NewNonce(), Region: "us-east-1", Endpoint: endpoint}
	if err := place.EnsureTable(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	grantsHold(t, dynamostore.New(place.Client(keys, nil), place.Table, dynamostore.Options{}))
}

// grantsHold goes the ways on which the store decides who wins: redemption, rotation,
// revocation, keys, documents and assertions.
func grantsHold(t *testing.T, store session.Store) {
	i := newIDP(t)
	s := newSite(t, store, func(c *broker.Config) {
		c.Enterprise = []oauth.Enterprise{{Issuer: i.url, Name: "corp"}}
		c.Documents = &http.Client{Transport: &web{answer: func(r *http.Request) (int, http.Header, string, error) {
			return http.StatusOK, http.Header{}, doc(r.URL.String(), nil), nil
		}}}
	})
	client, access, first := s.tokens()
	_, got := s.token(refreshing(client, first))
	second := got["refresh_token"].(string)
	if _, again := s.token(refreshing(client, first)); again["refresh_token"] != second {
		t.Error("two refreshes give two successors")
	}
	if status, _ := s.token(refreshing(client, second)); status != http.StatusOK || !s.good(access, "files") {
		t.Error("the successor:", status)
	}
	if res := s.do(http.MethodPost, at+"/revoke", url.Values{"token": {access}}, nil); res.StatusCode != http.StatusOK || s.good(access, "files") {
		t.Error("revocation:", res.Status)
	}
	s.refusedWith(t, refreshing(client, second), "invalid_grant")

	g := s.code()
	assertion := i.jag(g.client, nil, nil)
	for name, f := range map[string]url.Values{
		"code": g.form, "assertion": {"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {assertion}, "client_id": {g.client}},
	} {
		var all sync.WaitGroup
		var won atomic.Int32
		for range 8 {
			all.Go(func() {
				if s.do(http.MethodPost, at+"/token", f, nil).StatusCode == http.StatusOK {
					won.Add(1)
				}
			})
		}
		all.Wait()
		if won.Load() > 1 {
			t.Errorf("%s: %d have won", name, won.Load())
		}
	}
	key, record, err := auth.Create(t.Context(), store, auth.Grant{Tenant: "acme", Principal: "robot", Servers: []string{"files"}})
	if err != nil {
		t.Fatal(err)
	}
	if status, got := s.token(url.Values{"grant_type": {"client_credentials"}, "client_id": {record.ID}, "client_secret": {key}, "resource": {at + "/files/mcp"}}); status != http.StatusOK {
		t.Error("a key:", status, got)
	}
	_, challenge := pkce()
	for range 2 {
		if res := s.browser().open(http.MethodGet, at+"/authorize?"+request(clientURL, challenge).Encode(), nil); res.StatusCode != http.StatusOK {
			t.Error("a document:", res.Status)
		}
	}
}
