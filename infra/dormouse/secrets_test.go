package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestSecretsAreSetListedAndRemoved(t *testing.T) {
	data := t.TempDir()
	for _, step := range []struct {
		args, in string
		code     int
		want     string
	}{
		{"set github --principal ada", "", exitFailed, "the value for github has 0 bytes; it needs 1 to 16384"},
		{"set github --principal ada", "ghp_canary\n", exitDone, "github of ada, tenant default, is set."},
		{"set jira --principal bob --tenant acme", "jira_canary", exitDone, "jira of bob, tenant acme, is set."},
		{"list", "", exitDone, "github  default  ada "},
		{"list --principal bob --json", "", exitDone, `"name": "jira"`},
		{"list --tenant other --json", "", exitDone, "[]"},
		{"remove gitlab --principal ada", "", exitFailed, "ada of tenant default has no gitlab"},
		{"remove github --principal ada", "", exitDone, "github of ada"},
		{"list --principal ada --json", "", exitDone, "[]"},
	} {
		var out bytes.Buffer
		code := execute(strings.Fields("secrets "+step.args+" --data "+data), &terminal{in: strings.NewReader(step.in), out: &out, err: &out, now: noon})
		if got := out.String(); code != step.code || !strings.Contains(got, step.want) || strings.Contains(got, "canary") {
			t.Errorf("secrets %s: exit code %d, %s; want %d, %s", step.args, code, got, step.code, step.want)
		}
	}
}
