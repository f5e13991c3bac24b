package dormouse

import (
	"strings"
	"testing"
)

func TestSecretsAreSetListedAndRemoved(t *testing.T) {
	s := newShell(t)
	for _, step := range []struct {
		args, in string
		code     int
		want     string
	}{
		{"set github --principal ada", "", exitFailed, "the value for github has 0 bytes; it needs 1 to 16384"},
		{"set github --principal ada", "ghp_canary\n", exitDone, "github of ada, tenant default, is set. Processes get it with their next call.\n-- on stderr:\ntenant default has no key and no session of ada"},
		{"list", "", exitDone, "github  default  ada "},
		{"remove gitlab --principal ada", "", exitFailed, "ada of tenant default has no gitlab"},
		{"remove github --principal ada", "", exitDone, "github of ada"},
		{"list --principal ada --json", "", exitDone, "[]"},
	} {
		t.Run(step.args, func(t *testing.T) {
			s.in = step.in
			if got, code := s.run("secrets " + step.args + " --data $DATA"); code != step.code || !strings.Contains(got, step.want) || strings.Contains(got, "canary") {
				t.Errorf("secrets %s: exit code %d, %s; want %d, %s", step.args, code, got, step.code, step.want)
			}
		})
	}
}
