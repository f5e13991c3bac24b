package serversfile_test

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// The host of an invited runner says why it could not read a secret.
func TestAServerWithoutItsSecretsSaysWhy(t *testing.T) {
	_, err := one(t, server(withSecrets), nil).Resolve(func(name string) (string, bool) {
		return "Systems Manager has no parameter /dormouse/github", name == serversfile.SecretFailure
	})
	if err == nil || !strings.Contains(err.Error(), "no parameter /dormouse/github") {
		t.Error(err)
	}
}

const withSecrets = `"command": "a", "env": {"TOKEN": "ssm:/dormouse/github", "KEY": "secretsmanager:dormouse/openai:key::", "TZ": "UTC", "URL": "ssm://not a name", "NONE": "ssm:"}`

func TestValuesThatNameASecretAreTold(t *testing.T) {
	want := map[string]string{"TOKEN": "ssm:/dormouse/github", "KEY": "secretsmanager:dormouse/openai:key::"}
	commontest.Same(t, want, one(t, server(withSecrets), nil).References())
}

func TestASecretComesFromTheEnvironmentOfTheBox(t *testing.T) {
	s := one(t, server(withSecrets), nil)
	got, err := s.Resolve(variables(map[string]string{"DORMOUSE_ENV_TOKEN": "t0p", "DORMOUSE_ENV_KEY": "k3y", "DORMOUSE_ENV_TZ": "no"}))
	commontest.OK(t, err)
	want := map[string]string{"TOKEN": "t0p", "KEY": "k3y", "TZ": "UTC", "URL": "ssm://not a name", "NONE": "ssm:"}
	commontest.Same(t, want, got.Env)
	commontest.SameIn(t, "the box hides", []string{"KEY", "TOKEN"}, got.Box.Secrets)
	if s.Env["TOKEN"] != "ssm:/dormouse/github" || got.Digest != s.Digest {
		t.Errorf("the server itself has %q, and its digest is %s, then %s", s.Env["TOKEN"], s.Digest, got.Digest)
	}
}

func TestASecretThatIsNotThereIsNamedWithAWayOut(t *testing.T) {
	s := one(t, server(withSecrets), nil)
	_, err := s.Resolve(variables(map[string]string{"DORMOUSE_ENV_KEY": "k3y"}))
	if err == nil || !strings.Contains(err.Error(), "set TOKEN and write ${TOKEN:-ssm:/dormouse/github}") || strings.Contains(err.Error(), "k3y") {
		t.Error(err)
	}
	// The advice in that error works.
	s = one(t, server(`"command": "a", "env": {"TOKEN": "${TOKEN:-ssm:/dormouse/github}"}`), map[string]string{"TOKEN": "own"})
	if got, err := s.Resolve(variables(nil)); err != nil || got.Env["TOKEN"] != "own" {
		t.Errorf("%v, %v", got.Env, err)
	}
}
