package boot

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestEverybodyIsLetInOnOneMachineOnlyAndOnRequestOnly(t *testing.T) {
	const local = `{"url":"http://127.0.0.1:1/word"}`
	for _, test := range []struct {
		mode, local, sam string
		open, refused    bool
	}{
		{"", "", "", false, false},
		{"keys", local, "", false, false},
		{"open", local, "", true, false},
		{"open", "", "true", true, false},
		{"open", "", "", false, true},
		{"open", "", "false", false, true},
		{"Open", local, "", false, true},
	} {
		t.Setenv(EnvAccess, test.mode)
		t.Setenv(EnvLocal, test.local)
		t.Setenv(envSAMLocal, test.sam)
		var s wiring.Settings
		if err := access(&s); s.Open != test.open || (err != nil) != test.refused {
			t.Errorf("%+v: %v, %v", test, s.Open, err)
		}
	}
}

func TestTokensAreTakenAsTheServersFileAndTheEnvironmentSay(t *testing.T) {
	servers := func(text string) *serversfile.File {
		c, warnings, err := serversfile.Parse([]byte(text), "servers.json", nil)
		if err != nil || len(warnings) > 0 {
			t.Fatal(warnings, err)
		}
		return c
	}
	t.Setenv(EnvAccess, "idp")
	t.Setenv(EnvPublicURL, "https://mcp.example.com")
	t.Setenv(EnvClientSecret, "word")
	s := wiring.Settings{Servers: servers(`{"mcpServers":{},"x-dormouse":{"access":{"issuer":"https://one.example", /* a comment */ "tenant":"acme",}}}`)}
	commontest.OK(t, access(&s))
	if a := s.Access; s.Open || a.Issuer != "https://one.example" || a.Tenant != "acme" || a.PublicURL != "https://mcp.example.com" || a.ClientSecret != "word" {
		t.Errorf("%+v", a)
	}
	s.Servers = servers(`{"mcpServers":{},"x-dormouse":{"access":{"isuer":"https://one.example"}}}`)
	if err := access(&s); err == nil || !strings.Contains(err.Error(), "isuer") || !strings.Contains(err.Error(), EnvAccess) {
		t.Error(err)
	}
}
