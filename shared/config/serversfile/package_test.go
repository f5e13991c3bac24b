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
		"npx":                               `npx needs the name of a package: "args": ["-y", "PACKAGE"]`,
		"npx -y":                            `npx needs the name of a package: "args": ["-y", "PACKAGE"]`,
		"npx --yes --":                      `npx needs the name of a package: "args": ["-y", "PACKAGE"]`,
		"/usr/bin/npx -y":                   `npx needs the name of a package: "args": ["-y", "PACKAGE"]`,
		"uvx":                               `uvx needs the name of a package: "args": ["PACKAGE"]`,
		"uv tool run -q":                    `uv tool run needs the name of a package: "args": ["tool", "run", "PACKAGE"]`,
		"bunx":                              `bunx needs the name of a package: "args": ["PACKAGE"]`,
		"npm exec -y":                       `npm exec needs the name of a package: "args": ["exec", "-y", "--", "PACKAGE"]`,
		"npm x":                             `npm x needs the name of a package: "args": ["x", "-y", "--", "PACKAGE"]`,
		"pipx run":                          `pipx run needs the name of a package: "args": ["run", "PACKAGE"]`,
		"npx -y thing":                      "",
		"npx thing --stdio":                 "",
		"npx -p thing program":              "",
		"npx --package=thing":               "",
		"npx --package thing -c program":    "",
		"npx -c program":                    "",
		"npx --call=program":                "",
		"uvx --from thing program":          "",
		"uvx --from=thing program":          "",
		"uvx --with other thing":            "",
		"uv run server.py":                  "",
		"npm exec --package=thing -- serve": "",
		"npm start":                         "",
		"pipx run --spec=thing program":     "",
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
