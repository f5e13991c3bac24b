package main

import (
	"strings"
	"testing"
)

func TestKeyIsRefusedForAServerThatIsNotInTheFile(t *testing.T) {
	s := newShell(t)
	s.file("servers.json", `{"mcpServers": {"buggy": {"command": "a"}, "everything": {"command": "b"}, "unset": {"command": "${DORMOUSE_TEST_NOT_SET}"}}}`)
	for args, want := range map[string]string{ // in the output; "" for a key
		"--server bugy":                        "has no server bugy: did you mean buggy?",
		"--server Everything":                  "has no server Everything: did you mean everything?",
		"--server weather":                     "has no server weather: there are buggy, everything",
		"--server buggy --server everythin":    "has no server everythin: did you mean everything?",
		"--server unset":                       "",
		"--server buggy --server everything":   "",
		"--all-servers":                        "",
		"--server bugy --yet-to-come":          "",
		"--server x --servers $DATA/none.json": "",
	} {
		got, code := s.run("keys create ada --data $DATA --servers $DATA/servers.json " + args)
		if made := strings.HasPrefix(got, "dm_"); made != (want == "") || made != (code == exitDone) || !strings.Contains(got, want) {
			t.Errorf("%s: exit code %d, %s; want %q", args, code, got, want)
		}
	}
}
