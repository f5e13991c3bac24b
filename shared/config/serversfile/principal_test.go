package serversfile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func acting(server string) (*serversfile.File, error) {
	c, _, err := serversfile.Parse([]byte(`{"mcpServers":{"a":`+server+`},"x-dormouse":{"connect":{"github":{"client_secret":"${SECRET}"}}}}`), "servers.json", func(name string) (string, bool) {
		return "from the environment", name == "SECRET"
	})
	return c, err
}

func TestNoOtherPrincipalCanGetAtAToken(t *testing.T) {
	for server, want := range map[string]string{
		`{"command":"a","env":{"T":"${principal:github}"},"x-dormouse":{"box":{"scope":"shared"}}}`:      `scope "shared" gives all users one process`,
		`{"command":"a","env":{"T":"${principal_file:github}"},"x-dormouse":{"box":{"scope":"shared"}}}`: `scope "shared" gives all users one process`,
		`{"command":"a","args":["--token","${principal:github}"]}`:                                       "${principal:…} can stand in env, and in headers",
		`{"command":"${principal:github}"}`:                                                              "${principal:…} can stand in env, and in headers",
		`{"command":"a","cwd":"/x/${principal:github}"}`:                                                 "${principal:…} can stand in env, and in headers",
	} {
		c, err := acting(server)
		commontest.OK(t, err)
		rejected := c.Rejected()
		if len(rejected) != 1 || !strings.Contains(rejected[0].String(), want) {
			t.Errorf("%s: rejected %v, want %s", server, rejected, want)
		}
	}
}

func TestWhatAPrincipalHasIsFilledInByTheBox(t *testing.T) {
	for _, scope := range []string{"session", "principal"} {
		c, err := acting(`{"command":"a","env":{"T":"Bearer ${principal:github}","F":"${principal_file:notes}","O":"${principal:github}"},"x-dormouse":{"box":{"scope":"` + scope + `"}}}`)
		if err != nil || len(c.Rejected()) > 0 {
			t.Fatal(err, c.Rejected())
		}
		s, _ := c.Server("a")
		if names := s.Principal(); !slices.Equal(names, []string{"github", "notes"}) || s.Env["T"] != "Bearer ${principal:github}" || !s.Workspace() {
			t.Errorf("names %v, T is %q", names, s.Env["T"])
		}
		commontest.EqualIn(t, "connect", `{"github":{"client_secret":"from the environment"}}`, string(c.Connect()))
	}
}
