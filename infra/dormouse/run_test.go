package dormouse

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/display"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// In a clone the program is not on the PATH.
func TestRunProposesCommandsThatTheUserCanType(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("PATH", folder)
	commontest.EqualIn(t, "without dormouse on the PATH the user types", "bin/dormouse", typed("bin/dormouse"))
	if err := os.WriteFile(filepath.Join(folder, "dormouse"), nil, 0o700); err != nil { //nolint:gosec // it is found, and not executed
		t.Fatal(err)
	}
	commontest.EqualIn(t, "of a program that go run has built the user types", "go run .", typed("/tmp/go-build2896346980/b001/exe/hello"))
	commontest.EqualIn(t, "with dormouse on the PATH the user types", "dormouse", typed("bin/dormouse"))

	s := newShell(t)
	s.file("servers.json", `{"mcpServers":{"counter":{"x-dormouse":{"native":"counter"}}}}`)
	var out bytes.Buffer
	shown := display.New(display.Options{Out: &out})
	s.up(func(cfg *local.Config) { cfg.Display, cfg.Command = shown, "bin/dormouse" })()
	shown.Close()
	for _, want := range []string{" bin/dormouse open\n", " bin/dormouse connect claude-code\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not propose%s%s", want, out.String())
		}
	}
}

// The command run refuses flags that contradict each other, before it starts anything.
func TestRunRefusesFlagsThatCannotBeMeant(t *testing.T) {
	s := newShell(t)
	s.file("servers.json", `{"mcpServers":{"mine":{"command":"python3","args":["mine.py"]},"theirs":{"command":"npx","args":["-y","x"]}}}`)
	for line, want := range map[string]string{
		"run mine": "a servers file whose name does not end in .json: dormouse run --servers mine",
		"run --watch min --servers $DATA/servers.json --data $DATA":                              "did you mean mine?",
		"run --watch theirs --servers $DATA/servers.json --data $DATA":                           "others publish its program",
		"run --exit-when-idle 1s --servers $DATA/servers.json --data $DATA":                      "nobody would start it again",
		"run --store dynamodb:x?region=r --servers $DATA/servers.json":                           `"x" is no name of a table`,
		"run --store dynamodb:dormouse?endpoint=127.0.0.1:8000 --servers $DATA/servers.json":     "want http://HOST:PORT",
		"run --store dynamodb:dormouse?endpoint=http://127.0.0.1:1 --servers $DATA/servers.json": "cannot be asked for table",
	} {
		t.Run(line, func(t *testing.T) {
			if printed, code := s.run(line); code == exitDone || !strings.Contains(printed, want) {
				t.Errorf("%s: %d %s, want %s", line, code, printed, want)
			}
		})
	}
}
