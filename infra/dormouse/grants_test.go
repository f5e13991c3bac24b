package dormouse

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

func TestGrantsAreListedAndRevoked(t *testing.T) {
	s := newShell(t)
	file := t.TempDir() + "/store.db"
	store, err := local.OpenStore("sqlite:"+file, func(string) string { return "" }, sessions.Limits{}, sqlitestore.Options{})
	commontest.OK(t, err)
	g := storage.Grant{
		ID: "g1", Tenant: "acme", Principal: "corp:ada", Server: "files", Scopes: []string{"mcp", "files:write"}, Client: "dc_x", Name: "Claude", Host: "claude.ai",
		Current: []byte("hash"), Created: time.Now(), Expires: time.Now().Add(time.Hour),
	}
	commontest.OK(t, store.Grants().Create(t.Context(), g))
	commontest.OK(t, store.Close())
	for _, step := range []struct {
		args string
		code int
		want string
	}{
		{"list", exitDone, "g1     acme    corp:ada   files   mcp,files:write  Claude  claude.ai"},
		{"list --tenant other", exitDone, "GRANT"},
		{"revoke g2", exitFailed, "there is no grant g2; grants list prints the ids"},
		{"revoke g1", exitDone, "Grant g1 of corp:ada, tenant acme, is revoked."},
		{"list --json", exitDone, `"revoked":`},
	} {
		t.Run(step.args, func(t *testing.T) {
			got, code := s.run("grants " + step.args + " --store sqlite:" + file)
			if code != step.code || !strings.Contains(got, step.want) || strings.Contains(got, "hash") {
				t.Errorf("grants %s: exit code %d, %s; want %d, %s", step.args, code, got, step.code, step.want)
			}
		})
	}
}
