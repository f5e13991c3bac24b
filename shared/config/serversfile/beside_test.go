package serversfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestRelativePathsAreThoseOfTheFolderOfTheFile(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"mine.py", "bin/serve", "conf/a.json", "sub/own.py", "serve", "host/own.py"} {
		commontest.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o700))
		commontest.OK(t, os.WriteFile(filepath.Join(folder, name), nil, 0o700))
	}
	for _, c := range []struct {
		name, keys, command string
		args                []string
		cwd                 string
	}{
		{"script", `"command": "python3", "args": ["-u", "mine.py", "x"]`, "python3", []string{"-u", "F/mine.py", "x"}, "F"},
		{"program", `"command": "./bin/serve", "args": ["--config=conf/a.json", "--mode=a.b", "."]`, "F/bin/serve", []string{"--config=F/conf/a.json", "--mode=a.b", "F"}, "F"},
		{"words stay", `"command": "serve", "args": ["serve", "@scope/pkg@1.0.0", "none.py", "-m.x", "https://a/b", "/mine.py"]`, "serve", []string{"serve", "@scope/pkg@1.0.0", "none.py", "-m.x", "https://a/b", "/mine.py"}, "F"},
		{"cwd", `"command": "python3", "args": ["own.py", "mine.py"], "cwd": "sub"`, "python3", []string{"own.py", "F/mine.py"}, "F/sub"},
		{"program in cwd", `"command": "./own.py", "cwd": "sub"`, "./own.py", nil, "F/sub"},
		{"workspace", `"command": "python3", "args": ["mine.py", "${workspaceFolder}"]`, "python3", []string{"F/mine.py", "${workspaceFolder}"}, ""},
		{"host path that is found", `"command": "python3", "args": ["mine.py"], "x-dormouse": {"box": {"host_path": "auto"}}`, "python3", []string{"F/mine.py"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(folder, "servers.json")
			write(t, folder, "servers.json", server(c.keys))
			here, _, err := serversfile.LoadHere(path, nil)
			commontest.OK(t, err)
			s, ok := here.Server("x")
			if !ok {
				t.Fatal(here.Reason("x"))
			}
			short := func(path string) string {
				return strings.Replace(path, folder, "F", 1)
			}
			var args []string
			for _, arg := range s.Args {
				args = append(args, short(arg))
			}
			commontest.Same(t, []any{c.command, c.args, c.cwd}, []any{short(s.Command), args, short(s.Cwd)})
			if back, err := serversfile.UnmarshalServer(s.Marshal()); err != nil || back.Digest != s.Digest {
				t.Errorf("the box has another digest: %v", err)
			}
			// Load leaves relative paths as they are, because the box resolves them in
			// its image.
			elsewhere, _, err := serversfile.Load(path, nil)
			commontest.OK(t, err)
			if s, _ := elsewhere.Server("x"); strings.Contains(s.Marshal(), folder) {
				t.Errorf("on AWS: %s", s.Marshal())
			}
		})
	}
}
