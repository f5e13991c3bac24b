package provision

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestAServerGetsTheNetworkOfTheMachineUnlessItsEntrySaysOtherwise(t *testing.T) {
	machine := map[string]string{
		"HTTP_PROXY": "http://p", "https_proxy": "http://p", "NO_PROXY": "x", "SSL_CERT_FILE": "/ca", "NODE_EXTRA_CA_CERTS": "/ca", "GIT_SSL_CAINFO": "/ca", "NODE_USE_ENV_PROXY": "1",
		"DORMOUSE_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "s", "GITHUB_TOKEN": "g", "SSL_CERT": "x", "PROXY": "x", "PATH": "/bin",
	}
	for name, c := range map[string]struct {
		env   map[string]string
		unset []string
		want  map[string]string
	}{
		"nothing is said": {nil, nil, map[string]string{
			"HTTP_PROXY": "http://p", "https_proxy": "http://p", "NO_PROXY": "x", "SSL_CERT_FILE": "/ca", "NODE_EXTRA_CA_CERTS": "/ca", "GIT_SSL_CAINFO": "/ca", "NODE_USE_ENV_PROXY": "1",
		}},
		"the entry wins, whatever the case": {
			map[string]string{"http_proxy": "http://q", "HTTPS_PROXY": "http://q", "SSL_CERT_FILE": "/own"},
			[]string{"no_proxy", "NODE_EXTRA_CA_CERTS"},
			map[string]string{"GIT_SSL_CAINFO": "/ca", "NODE_USE_ENV_PROXY": "1"},
		},
	} {
		commontest.SameIn(t, name, c.want, Network(machine, c.env, c.unset))
	}
}
