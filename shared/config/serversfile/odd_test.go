package serversfile_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestValuesThatCanMeanOnlyOneThingAreTakenAsThat(t *testing.T) {
	for name, file := range map[string]string{
		"server": `{"mcpServers": {"x": {"command": "a", "args": ["-p", 3000, true, 1e3], "env": %s}}}`,
		"box":    `{"mcpServers": {"x": {"command": "a", "args": ["-p", 3000, true, 1e3], "env": {"PORT": "x", "GONE": "y"}, "x-dormouse": {"box": {"env": %s}}}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := one(t, fmt.Sprintf(file, `{"PORT": 3000, "BIG": 9007199254740993, "F": 1.50, "ON": false, "GONE": null, "HTTP_PROXY": null}`), nil)
			commontest.Same(t, map[string]string{"PORT": "3000", "BIG": "9007199254740993", "F": "1.50", "ON": "false"}, s.Env)
			commontest.Same(t, []string{"GONE", "HTTP_PROXY"}, s.Unset)
			commontest.Same(t, []string{"-p", "3000", "true", "1e3"}, s.Args)
			again, err := serversfile.UnmarshalServer(s.Marshal())
			if diff := cmp.Diff(s, again); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
	s := one(t, `{"mcpServers": {"x": {"url": "https://example.com/mcp", "headers": {"X-Version": 3, "X-None": null, "X-On": true}}}}`, nil)
	commontest.Same(t, map[string]string{"X-Version": "3", "X-On": "true"}, s.Remote.Headers)
}

func TestTheHomeFolderIsThatOfTheMachine(t *testing.T) {
	folder := t.TempDir()
	load := func(keys string) (serversfile.Server, string) {
		t.Helper()
		write(t, folder, "servers.json", server(keys))
		c, warnings, err := serversfile.LoadHere(filepath.Join(folder, "servers.json"), variables(outside))
		commontest.OK(t, err)
		s, _ := c.Server("x")
		return s, c.Reason("x") + fmt.Sprint(warnings)
	}
	s, said := load(`"command": "~/bin/x", "cwd": "$HOME/work", "x-dormouse": {"box": {"host_path": "~/src"}},
		"args": ["~", "~/My Notes", "$HOME", "$HOME/a", "${HOME}/b", "$HOMEDIR/c", "~bob/d", "a~", "HEAD~1", "~~", "-c", "$HOME/run --fast", "-lc", "~/run", "--src", "~/src", "-exec", "~/x", "sh -c 'echo $HOME'"]`)
	if s.Command != "/home/ada/bin/x" || s.Cwd != "/home/ada/work" || s.Box.HostPath != "/home/ada/src" || said != "[]" {
		t.Errorf("%+v, %s", s, said)
	}
	want := []string{
		"/home/ada", "/home/ada/My Notes", "/home/ada", "/home/ada/a", "/home/ada/b", "$HOMEDIR/c", "~bob/d", "a~", "HEAD~1", "~~", "-c", "$HOME/run --fast",
		"-lc", "~/run", "--src", "/home/ada/src", "-exec", "/home/ada/x", "sh -c 'echo $HOME'",
	}
	commontest.Same(t, want, s.Args)
	// In the middle of an argument shells differ, and the program may read it.
	for _, arg := range []string{"--dir=~/x", "--dir=~", "--dir=$HOME/x", "a$HOME"} {
		if s, said := load(`"command": "a", "args": ["` + arg + `"]`); s.Args[0] != arg {
			t.Errorf("%s is %s: %s", arg, s.Args[0], said)
		}
	}
}
