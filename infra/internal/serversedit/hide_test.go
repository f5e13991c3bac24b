package serversedit_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestSecretsOfALineAreHiddenAndTheRestStays(t *testing.T) {
	for line, want := range map[string]string{
		`      "url": "http://127.0.0.1:8787/mine/mcp"`:         "",
		`-     "env": {"KEY": "hunter2", "LEVEL": "info"}`:      `-     "env": {"KEY": "***", "LEVEL": "info"}`,
		`      "args": ["-y", "mine", "ghp_hunter2hunter2"]`:    `      "args": ["-y", "mine", "***"]`,
		`+       "Authorization": "Bearer hunter2"`:             `+       "Authorization": "***"`,
		`- http_headers = { Authorization = 'Bearer hunter2' }`: `- http_headers = { Authorization = "***" }`,
		`    API_KEY: hunter2`:                                  `    API_KEY: ***`,
		`  // a comment: it stays`:                              "",
		`      "url": "https://ada:hunter2@example.com/mcp"`:    `      "url": "***"`,
	} {
		if want == "" {
			want = line
		}
		commontest.EqualIn(t, line, want, serversedit.Hide(line))
	}
}
