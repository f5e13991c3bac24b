package dormouse

import (
	"os"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestImageSaysWhyAServerIsLeftOut(t *testing.T) {
	t.Chdir(t.TempDir())
	commontest.OK(t, os.WriteFile("servers.json", []byte(`{"mcpServers": {"bad": {"command": "npx", "args": ["${DORMOUSE_TEST_NOT_SET}"]}, "own": {"command": "true"}}}`), 0o600))
	printed, code := printedBy([]string{"image"}, terminal{now: noon})
	for _, want := range []string{"DORMOUSE_TEST_NOT_SET", "its command is not npx or uvx"} {
		if code != exitDone || !strings.Contains(printed, want) {
			t.Errorf("%q is missing, code %d:\n%s", want, code, printed)
		}
	}
}
