package dormouse

import (
	"strings"
	"testing"
)

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
