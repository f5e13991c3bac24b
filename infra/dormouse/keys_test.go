package dormouse

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestKeyIsRefusedForAServerThatIsNotInTheFile(t *testing.T) {
	s := newShell(t)
	s.file("servers.json", `{"mcpServers": {"buggy": {"command": "a"}, "everything": {"command": "b"}, "unset": {"command": "${DORMOUSE_TEST_NOT_SET}"}}}`)
	for args, want := range map[string]string{ // in the output; "" for a key
		"--server bugy":                        "has no server bugy: did you mean buggy?",
		"--server buggy --server everythin":    "has no server everythin: did you mean everything?",
		"--server unset":                       "",
		"--all-servers":                        "",
		"--server x --servers $DATA/none.json": "",
	} {
		t.Run(args, func(t *testing.T) {
			got, code := s.run("keys create ada --data $DATA --servers $DATA/servers.json " + args)
			if made := strings.HasPrefix(got, "dm_"); made != (want == "") || made != (code == exitDone) || !strings.Contains(got, want) {
				t.Errorf("%s: exit code %d, %s; want %q", args, code, got, want)
			}
		})
	}
}

// A key of a folder that no run uses opens nothing.
func TestKeyForAFolderThatNothingUsesIsMadeWithAWarning(t *testing.T) {
	s := newShell(t)
	s.file("servers.json", `{"mcpServers": {}}`)
	for _, line := range []string{"list", "rotate ada", "revoke ada"} { // these make no folder
		if got, code := s.run("keys " + line + " --data $DATA/wrong"); code != exitNotUp || exists(filepath.Join(s.data, "wrong")) {
			t.Errorf("keys %s: exit code %d, %s", line, code, got)
		}
	}
	for _, test := range []struct {
		args string
		want bool
	}{
		{"--data $DATA/wrong --servers $DATA/none.json", true},
		{"--data $DATA/wrong --servers $DATA/none.json", false}, // the folder has a key now
		{"--data $DATA/right --servers $DATA/servers.json", false},
	} {
		got, code := s.run("keys create ada --all-servers " + test.args)
		if code != exitDone || strings.Contains(got, "No dormouse run has used") != test.want {
			t.Errorf("%s: exit code %d, %s; want a warning: %v", test.args, code, got, test.want)
		}
	}
}

func TestConnectPrintsTheServersThatTheKeyIsFor(t *testing.T) {
	t.Setenv("DORMOUSE_URL", "")
	s := newShell(t)
	s.file("servers.json", `{"mcpServers": {"one": {"x-dormouse": {"native": "counter"}}, "two": {"x-dormouse": {"native": "counter"}}}}`)
	s.run("keys create ada --server gone --data $DATA --servers $DATA/none.json")
	stale := s.mask[len(s.mask)-4]
	defer s.up()()
	for _, test := range []struct{ grant, args, want, not string }{
		{"--server two", "", "/two/mcp", "/one/mcp"},
		{"--server two", "one", "/one/mcp", "/two/mcp"}, // who names a server gets it
		{"--all-servers", "", "/one/mcp", ""},
		{"", "", "the key is for gone, which is not served", "/one/mcp"},
	} {
		t.Run(test.grant, func(t *testing.T) {
			key := stale
			if test.grant != "" {
				s.run("keys create ada --data $DATA " + test.grant)
				key = s.mask[len(s.mask)-4]
			}
			got, _ := s.run("connect cursor " + test.args + " --data $DATA --servers $DATA/servers.json --key " + key)
			if !strings.Contains(got, test.want) || test.not != "" && strings.Contains(got, test.not) {
				t.Errorf("with a key made by %s, connect %s prints %s", test.grant, test.args, got)
			}
		})
	}
	if got, _ := s.run("connect cursor --data $DATA --servers $DATA/servers.json --key token"); !strings.Contains(got, "/one/mcp") || !strings.Contains(got, "/two/mcp") {
		t.Errorf("with a token it prints %s", got)
	}
}
