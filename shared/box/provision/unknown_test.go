package provision

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// What npm 11 and uv 0.9 print.
const (
	npmKnowsNone = `npm error code E404
npm error 404 Not Found - GET https://registry.npmjs.org/@modelcontextprotocol%2fNAME
npm error 404
npm error 404  The requested resource '@modelcontextprotocol/NAME@*' could not be found or you do not have permission to access it.
npm error 404
npm error A complete log of this run can be found in: /home/me/.npm/_logs/debug-0.log`
	npmHasNoVersion = `npm error code ETARGET
npm error notarget No matching version found for @modelcontextprotocol/server-everything@99.0.0.
npm error notarget In most cases you or one of your dependencies are requesting a package version that doesn't exist.`
	uvKnowsNone = `  × No solution found when resolving dependencies:
  ╰─▶ Because NAME was not found in the package registry and you require NAME, we can
      conclude that your requirements are unsatisfiable.`
	uvHasNoVersion = `  × No solution found when resolving dependencies:
  ╰─▶ Because there is no version of mcp-server-time==99 and you require mcp-server-time==99, we can
      conclude that your requirements are unsatisfiable.`
)

func TestPackageThatTheIndexDoesNotHaveIsNamed(t *testing.T) {
	for _, c := range []struct{ line, name, said, want string }{
		{"npx @modelcontextprotocol/no-such-thing", "no-such-thing", npmKnowsNone, "npm knows no @modelcontextprotocol/no-such-thing"},
		{"npx srv", "part", npmKnowsNone, "npm knows no @modelcontextprotocol/part, which srv needs"},
		{"npx @modelcontextprotocol/server-everything@99.0.0", "", npmHasNoVersion, "npm has no @modelcontextprotocol/server-everything@99.0.0"},
		{"uvx other", "other", uvKnowsNone, "PyPI knows no other"},
		{"uvx mcp-server-time==99", "", uvHasNoVersion, "PyPI has no mcp-server-time==99"},
	} {
		t.Run(c.name, func(t *testing.T) {
			words := strings.Fields(c.line)
			r, ok := parseTool(words[0], words[1:])
			if !ok {
				t.Fatalf("%s is no command line of a package runner", c.line)
			}
			said := strings.ReplaceAll(c.said, "NAME", c.name)
			err := installError(r.unknown(&commandError{code: 1, said: said, more: said}))
			commontest.EqualIn(t, c.line, c.want+": "+said, err.Error())
		})
	}
	offline := &commandError{code: 1, said: "npm error code ENOTFOUND", more: "npm error code ENOTFOUND"}
	commontest.EqualIn(t, "without a network", "dependency install failed (exit 1): npm error code ENOTFOUND", installError(request{name: "srv", kind: "npm"}.unknown(offline)).Error())
}
