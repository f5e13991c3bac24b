package dormouse

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/config/override"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestPushPutsTheFileIntoTheStoreOfAStack(t *testing.T) {
	store := storagetest.NewMemory()
	key, _, err := apikey.Create(t.Context(), store, apikey.Grant{Tenant: "default", Principal: "olaf", Servers: []string{"*"}, Role: storage.RoleOperator})
	commontest.OK(t, err)
	stack := httptest.NewServer(api.New(api.Options{Info: api.Info{Place: api.PlaceStack}, Store: store, Pushed: true, Caller: api.Holders(apikey.NewKeys(store), nil)}))
	defer stack.Close()
	s := newShell(t)
	file := `{"mcpServers":{"one":{"command":"a"}}}`
	s.file("servers.json", file)
	s.file("secret.json", `{"mcpServers":{"one":{"command":"a","env":{"TOKEN":"hidden"}}}}`)
	where := " --url " + stack.URL + " --key " + key

	printed, code := s.run("push $DATA/servers.json" + where)
	if code != 0 || !strings.Contains(printed, "Version 1 of the servers file") {
		t.Errorf("%d: %s", code, printed)
	}
	if f, err := override.Load(t.Context(), store); err != nil || string(f.Text) != file || f.By != "olaf" || f.Name != "servers.json" {
		t.Errorf("stored is %+v, %v", f, err)
	}
	if printed, code := s.run("push $DATA/secret.json" + where); code != exitFailed || !strings.Contains(printed, `env "TOKEN" looks like a secret`) || strings.Contains(printed, "hidden") {
		t.Errorf("%d: %s", code, printed)
	}
	if printed, code := s.run("push --withdraw --json" + where); code != 0 || !strings.Contains(printed, `"version": 2`) {
		t.Errorf("%d: %s", code, printed)
	}
	if f, err := override.Load(t.Context(), store); err != nil || len(f.Text) > 0 {
		t.Errorf("after it was withdrawn there is %+v, %v", f, err)
	}
}
