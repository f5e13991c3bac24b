//go:build e2e

package dormouse_test

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// registryOf returns the address of a machine's registry.
func (m *machine) registryOf(server string) string {
	return strings.TrimSuffix(m.urls[server], "/"+server+"/mcp") + "/registry"
}

// A machine adds a server that another machine hosts, by the server's name in the
// registry of that machine.
func TestE2EServerOfARegistryIsAdded(t *testing.T) {
	t.Parallel()
	far := newMachine(t, servers{"one": nil, "two": nil})
	far.start("--access", "keys")
	for name, tt := range map[string]struct {
		add string // the name to add
		env []string
		arg []string
	}{
		"by flags":    {"local/one", nil, []string{"--registry", far.registryOf("one"), "--registry-key", far.keys("create", "ada", "--server", "one")}},
		"by two keys": {"one", nil, []string{"--registry", far.registryOf("one"), "--registry-key", far.keys("create", "cy", "--server", "one"), "-e", far.keyVariable("one") + "=" + far.keys("create", "dee", "--server", "one")}},
	} {
		t.Run(name, func(t *testing.T) {
			near := newMachine(t, nil)
			near.env = append(near.env, tt.env...)
			said := near.does("add", append([]string{tt.add, "--private"}, tt.arg...)...)
			if !strings.Contains(said, "added one") || !strings.Contains(said, "1 tool in ") {
				t.Errorf("add said %s", said)
			}
			near.start()
			c := near.session("one")
			commontest.EqualIn(t, "the first call counts", "1", c.text("count", ""))
			commontest.EqualIn(t, "the server calls itself", "one", c.whoami().Name)
			if out, err := near.tries("add", append([]string{"two"}, tt.arg...)...); err == nil || !strings.Contains(out, "has no server two") {
				t.Errorf("a server that the key is not for: %v, %s", err, out)
			}
		})
	}
}

// keyVariable is the variable for which the registry of a machine asks.
func (m *machine) keyVariable(server string) string {
	_, place, _ := strings.Cut(strings.TrimSuffix(m.registryOf(server), "/registry"), "://")
	return "KEY_" + strings.NewReplacer(".", "_", ":", "_").Replace(place)
}
