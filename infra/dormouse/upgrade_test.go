package dormouse

import (
	"strings"
	"testing"
)

func TestVersionsAreComparedByTheirNumbers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		newer, older string
		same         bool
	}{
		{"1.10.0", "1.9.2", false},
		{"1.0.0", "1.0.0-rc.1", false},
		{"1.0", "1.0.0", true},
		{"v1.2.0", "1.2.0+build.7", true},
	} {
		t.Run(c.newer+" and "+c.older, func(t *testing.T) {
			t.Parallel()
			if isNewer(c.newer, c.older) == c.same || isNewer(c.older, c.newer) {
				t.Errorf("%s is newer than %s: %v, the other way round %v", c.newer, c.older, isNewer(c.newer, c.older), isNewer(c.older, c.newer))
			}
		})
	}
}

// A user who sees the difference may leave it.
func TestUpgradeThatTheUserDoesNotWantChangesNothing(t *testing.T) {
	d := newDesk(t, `-- servers.json --
{"mcpServers": {"weather": {"command": "npx", "args": ["-y", "@ada/weather@1.0.2"]}}}
`)
	for _, line := range []string{"upgrade weather", "upgrade weather --to v2.1.0"} {
		asked := ""
		d.ask = func(question string, _ bool) (string, error) { asked = question; return "n", nil }
		printed, code := d.run(line)
		if text, _ := d.run("cat servers.json"); code != 1 || asked != "take 2.1.0 of @ada/weather? [y/n] " || !strings.Contains(printed, "{+2.1.0.+}") || !strings.Contains(text, "@1.0.2") {
			t.Errorf("%s: %d %s %s %s", line, code, asked, printed, text)
		}
	}
}
