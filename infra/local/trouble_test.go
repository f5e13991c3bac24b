package local

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
)

// A secret that is new in a folder in use costs what it sealed. A run says so, once.
func TestANewSecretInAUsedFolderIsTold(t *testing.T) {
	var data, servers string
	told := func() bool {
		var out bytes.Buffer
		m := configured(t, func(c *Config) {
			c.JSON = &out
			if data != "" {
				c.Data, c.Servers = data, servers
			}
			data, servers = c.Data, c.Servers
		})
		if err := m.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.stop(t.Context())
		return strings.Contains(out.String(), "folder.trouble") && strings.Contains(out.String(), datafolder.LostWithSecret)
	}
	for range 2 {
		if told() {
			t.Error("the secret was not lost")
		}
	}
	if err := os.Remove(data + "/" + datafolder.SecretFile); err != nil {
		t.Fatal(err)
	}
	if !datafolder.SecretLost(data) {
		t.Error("doctor does not know that the secret is gone")
	}
	if !told() {
		t.Error("a new secret was not told")
	}
	if told() || datafolder.SecretLost(data) {
		t.Error("it was told twice")
	}
}
