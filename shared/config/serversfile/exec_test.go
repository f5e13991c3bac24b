package serversfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

const withCommands = `{"mcpServers": {
  "box": {"command": "a", "env": {"TOKEN": "exec:op read ${ITEM}", "TZ": "UTC", "NOT": " exec:x", "OTHER": "${OTHER}"}},
  "far": {"url": "https://example.com/mcp", "headers": {"Authorization": "exec:printf 'Bearer %s' \"$(pass far)\"", "X-A": "b"}}
}}`

// here reads a file with commands that has these rights.
func here(t *testing.T, mode os.FileMode) (*serversfile.File, []serversfile.Warning) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "servers.json")
	commontest.OK(t, os.WriteFile(path, []byte(withCommands), 0o600))
	commontest.OK(t, os.Chmod(path, mode))
	c, warnings, err := serversfile.LoadHere(path, variables(map[string]string{"OTHER": "exec:rm -rf /"}))
	commontest.OK(t, err)
	return c, warnings
}

// A command is one only where the file itself says so, and its variables are the shell's.
func TestCommandsAreKeptApartFromValues(t *testing.T) {
	c, warnings := here(t, 0o644)
	s, ok := c.Server("box")
	if !ok {
		t.Fatal(c.Rejected())
	}
	far, _ := c.Server("far")
	for _, part := range [][2]map[string]string{
		{s.Commands, {"TOKEN": "op read ${ITEM}"}},
		{s.Env, {"TZ": "UTC", "NOT": " exec:x", "OTHER": "exec:rm -rf /"}},
		{far.Remote.Commands, {"Authorization": `printf 'Bearer %s' "$(pass far)"`}},
		{far.Remote.Headers, {"X-A": "b"}},
	} {
		commontest.Same(t, part[1], part[0])
	}
	for _, of := range []serversfile.Server{s, far} { // whoever keeps what calls said cannot hide the output
		if _, known := of.Secrets(); known {
			t.Errorf("all secrets of %s are known", of.Name)
		}
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0].Text, `env "OTHER": exec: is executed only where the servers file itself has it`) {
		t.Errorf("warnings: %v", warnings)
	}

	// The runner gets the names, and the values beside them.
	sent, err := serversfile.UnmarshalServer(s.Marshal())
	if err != nil || sent.Digest != s.Digest {
		t.Fatal(sent.Digest, s.Digest, err)
	}
	got, err := sent.Resolve(variables(map[string]string{"DORMOUSE_ENV_TOKEN": "t0p"}))
	if err != nil || got.Env["TOKEN"] != "t0p" || len(got.Box.Secrets) != 1 || got.Box.Secrets[0] != "TOKEN" {
		t.Errorf("%v, hides %v, %v", got.Env, got.Box.Secrets, err)
	}
	if _, err := sent.Resolve(variables(nil)); err == nil || !strings.Contains(err.Error(), `env "TOKEN" is a command`) {
		t.Error(err)
	}
	other := s
	other.Commands = map[string]string{"TOKEN": "op read other"}
	if again, err := serversfile.UnmarshalServer(other.Marshal()); err != nil || again.Digest == s.Digest {
		t.Errorf("another command has the same digest %s, %v", again.Digest, err)
	}
	path := c.Files()[0]
	commontest.OK(t, os.WriteFile(path, []byte(strings.NewReplacer("op read", "op get", "pass far", "pass near").Replace(withCommands)), 0o600))
	next, _, err := serversfile.LoadHere(path, variables(map[string]string{"OTHER": "exec:rm -rf /"}))
	commontest.OK(t, err)
	_, changes := next.After(c, noon)
	commontest.Equal(t, "~ box (env)  ~ far (headers)", changes.String())
}

// A file that others can write, and a file of functions, have no commands.
func TestCommandsAreRefusedWhereOthersCouldWriteThem(t *testing.T) {
	const ofFile = "the command is not executed, because other users can write the file: chmod go-w servers.json"
	const onAWS = "a command can be executed on one machine only: on AWS write "
	aws, _, err := serversfile.Parse([]byte(withCommands), "servers.json", variables(map[string]string{"OTHER": ""}))
	commontest.OK(t, err)
	group, _ := here(t, 0o660)
	everybody, _ := here(t, 0o606)
	for _, test := range []struct {
		name         string
		file         *serversfile.File
		want, header string
	}{{"AWS", aws, onAWS + `"ssm:NAME" or "secretsmanager:NAME"`, onAWS + "the value, or ${principal:NAME}"}, {"group", group, ofFile, ofFile}, {"everybody", everybody, ofFile, ofFile}} {
		rejected := test.file.Rejected()
		if len(rejected) != 2 || rejected[0].Cause() != `env "TOKEN": `+test.want || rejected[1].Cause() != "header Authorization: "+test.header {
			t.Errorf("%s: %v", test.name, rejected)
		}
	}
}
