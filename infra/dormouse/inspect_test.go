package dormouse

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local"
)

// The Inspector gets the address, the transport and a key, which is in no command line.
func TestInspectFillsInTheServer(t *testing.T) {
	for access, want := range map[string]string{
		local.AccessOpen: `{"mcpServers":{"counter":{"type":"streamable-http","url":"URL/counter/mcp"}}}`,
		local.AccessKeys: `{"mcpServers":{"counter":{"type":"streamable-http","url":"URL/counter/mcp","headers":{"Authorization":"Bearer dm_` + strings.Repeat("k", 41) + `"}}}}`,
	} {
		t.Run(access, func(t *testing.T) {
			s := newShell(t)
			s.file("servers.json", `{"mcpServers":{"counter":{"x-dormouse":{"native":"counter"}}}}`)
			writeFile(t, filepath.Join(s.data, "bin", "npx"), "#!/bin/sh\necho \"$1 $2 $3\"\nwhile read -r line || [ -n \"$line\" ]; do echo \"$line\"; done < \"$4\"\n", 0o700)
			t.Setenv("PATH", filepath.Join(s.data, "bin"))
			defer s.up(func(cfg *local.Config) { cfg.Access = access })()
			printed, code := s.run("inspect counter --data $DATA")
			printed = strings.ReplaceAll(printed, addressOf(printed), "URL")
			if lines := strings.Split(printed, "\n"); code != 0 || len(lines) < 2 || lines[0] != "-y "+inspector+" --config" || lines[1] != want {
				t.Errorf("%d: %s", code, printed)
			}
			if printed, code := s.run("inspect conter --data $DATA"); code != 1 || !strings.Contains(printed, "did you mean counter?") {
				t.Errorf("%d: %s", code, printed)
			}
		})
	}
}
