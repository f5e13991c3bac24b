package provision

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/nearest"
)

// What package managers print if an index does not have what they were asked for.
var (
	npmUnknown = regexp.MustCompile(`404\s+.*'(@?[^@'\s]+)@`)
	npmVersion = regexp.MustCompile(`No matching version found for (\S+?)\.?\s`)
	pipUnknown = regexp.MustCompile(`satisfies the requirement (\S+).*\(from versions: (.*)\)`)
	uvUnknown  = regexp.MustCompile(`(\S+) was not found in the package\s+registry`)
	uvVersion  = regexp.MustCompile(`there is no version of (\S+==\S+)`)
)

// unknown puts a sentence before the error of a failed resolve: which package or version
// the index does not have. It adds nothing if the package manager's output does not say
// that.
func (r request) unknown(err error) error {
	var failed *commandError
	if !errors.As(err, &failed) {
		return err
	}
	say := npmLacks
	if r.kind == "pypi" {
		say = pypiLacks
	}
	lacks, name := say(failed.more + "\n")
	if lacks == "" {
		return err
	}
	if name != r.name {
		lacks += ", which " + r.name + " needs"
	}
	failed.lacks, failed.hint = lacks, ""
	return err
}

// npmLacks reads the output of npm. name is the package that is missing, or has no such
// version.
func npmLacks(said string) (lacks, name string) {
	if m := npmUnknown.FindStringSubmatch(said); m != nil && strings.Contains(said, "E404") {
		return "npm knows no " + m[1] + meant(m[1], npmNames(), pypiNames(), "PyPI", "uvx"), m[1]
	}
	if m := npmVersion.FindStringSubmatch(said); m != nil {
		name, version := m[1], ""
		if at := strings.LastIndexByte(name, '@'); at > 0 {
			name, version = name[:at], name[at+1:]
		}
		return fmt.Sprintf("npm has no version %s of %s", version, name), name
	}
	return "", ""
}

// pypiLacks is npmLacks for pip and uv.
func pypiLacks(said string) (lacks, name string) {
	if m := pipUnknown.FindStringSubmatch(said); m != nil {
		if name = nameIn(m[1]); m[2] == "none" {
			return pypiUnknown(name), name
		}
		all := strings.Split(m[2], ", ")
		return fmt.Sprintf("PyPI has no %s for this Python; the newest version is %s", m[1], all[len(all)-1]), name
	}
	if m := uvUnknown.FindStringSubmatch(said); m != nil {
		return pypiUnknown(m[1]), m[1]
	}
	if m := uvVersion.FindStringSubmatch(said); m != nil {
		return fmt.Sprintf("PyPI has no %s for this Python", m[1]), nameIn(m[1])
	}
	return "", ""
}

// pypiUnknown says that PyPI does not have a package, or has only its source. It says
// both, because pip prints the same for both.
func pypiUnknown(name string) string {
	lacks := "PyPI knows no " + name
	if near := meant(name, pypiNames(), npmNames(), "npm", "npx"); near != "" {
		return lacks + near
	}
	return lacks + ", or has no built package (wheel) of it for this Python; if it has only the source, " + scriptsSetting + " has it built in a sandbox"
}

// nameIn returns the name in a requirement, such as x of x[cli]==1.0.
func nameIn(requirement string) string {
	if end := strings.IndexAny(requirement, "[=<>!~; "); end > 0 {
		return requirement[:end]
	}
	return requirement
}

// meant returns a hint to append to the name of a package that its index does not have.
// names are well-known packages of this index, and others are those of the other index.
func meant(name string, names, others []string, index, runner string) string {
	if slices.Contains(others, name) {
		return fmt.Sprintf(" (%s has it: use %s)", index, runner)
	}
	if near := nearest.Of(name, names, 1+len(name)/8); near != "" && near != name {
		return " (did you mean " + near + "?)"
	}
	return ""
}

// npmNames and pypiNames are well-known servers. Hints propose only these names. A
// similar name from the index itself could belong to an attacker who registered it for
// typing errors.
func npmNames() []string {
	return []string{
		"@modelcontextprotocol/server-everything", "@modelcontextprotocol/server-filesystem", "@modelcontextprotocol/server-memory",
		"@modelcontextprotocol/server-sequential-thinking", "@modelcontextprotocol/server-github", "@modelcontextprotocol/server-gitlab",
		"@modelcontextprotocol/server-google-maps", "@modelcontextprotocol/server-slack", "@modelcontextprotocol/server-postgres",
		"@modelcontextprotocol/server-puppeteer", "@modelcontextprotocol/server-brave-search", "@modelcontextprotocol/server-gdrive",
		"@modelcontextprotocol/server-redis", "@modelcontextprotocol/server-everart", "@modelcontextprotocol/inspector",
		"@playwright/mcp", "@upstash/context7-mcp", "chrome-devtools-mcp", "firecrawl-mcp", "mcp-remote",
	}
}

func pypiNames() []string {
	return []string{"mcp-server-fetch", "mcp-server-git", "mcp-server-sqlite", "mcp-server-time", "mcp-proxy", "markitdown-mcp", "mcp-atlassian"}
}
