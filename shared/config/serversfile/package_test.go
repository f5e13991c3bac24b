package serversfile_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestProgramThatStartsAPackageNeedsItsName(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"npx":                               `npx needs the name of a package in args`,
		"npx --yes --":                      `npx needs the name of a package in args`,
		"uvx":                               `uvx needs the name of a package in args`,
		"npm exec -y":                       `npm exec needs the name of a package in args`,
		"pipx run":                          `pipx run needs the name of a package in args`,
		"npx -y thing":                      "",
		"uvx --from thing program":          "",
		"uv run server.py":                  "",
		"npm exec --package=thing -- serve": "",
		"./npx":                             "",
		"bin/npx -y":                        "",
	} {
		t.Run(line, func(t *testing.T) {
			words := strings.Fields(line)
			args, err := json.Marshal(words[1:])
			commontest.OK(t, err)
			err = wrong(`{"mcpServers": {"x": {"command": "`+words[0]+`", "args": `+string(args)+`}}}`, nil)
			switch {
			case want == "" && err != nil:
				t.Errorf("%s: %v", line, err)
			case want != "" && (err == nil || !strings.HasSuffix(err.Error(), want)):
				t.Errorf("%s: %v, want %s", line, err, want)
			}
		})
	}
}
