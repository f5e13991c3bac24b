package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// createKey runs dormouse keys create with a data folder of its own. The folder
// also has a servers file if content is not "".
func createKey(t *testing.T, content string, args ...string) error {
	t.Helper()
	folder := t.TempDir()
	file := filepath.Join(folder, "servers.json")
	if content != "" {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var c commands
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	k, err := parser.Parse(append([]string{"keys", "create", "ada", "--data", folder, "--servers", file}, args...))
	if err != nil {
		t.Fatal(err)
	}
	return k.Run()
}

func TestKeyIsRefusedForAServerThatIsNotInTheFile(t *testing.T) {
	const file = `{"mcpServers": {"buggy": {"command": "a"}, "everything": {"command": "b"}, "unset": {"command": "${DORMOUSE_TEST_NOT_SET}"}}}`
	for name, test := range map[string]struct {
		args []string
		want string // in the error; "" for none
	}{
		"slip":        {[]string{"--server", "bugy"}, "has no server bugy: did you mean buggy?"},
		"other case":  {[]string{"--server", "Everything"}, "has no server Everything: did you mean everything?"},
		"far off":     {[]string{"--server", "weather"}, "has no server weather: it has buggy, everything"},
		"second slip": {[]string{"--server", "buggy", "--server", "everythin"}, "has no server everythin: did you mean everything?"},
		"not hosted":  {[]string{"--server", "unset"}, ""},
		"right":       {[]string{"--server", "buggy", "--server", "everything"}, ""},
		"all":         {[]string{"--all-servers"}, ""},
		"forced":      {[]string{"--server", "bugy", "--force"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := createKey(t, file, test.args...)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func TestKeyIsMadeWithoutAServersFile(t *testing.T) {
	if err := createKey(t, "", "--server", "deployed"); err != nil {
		t.Error(err)
	}
}
