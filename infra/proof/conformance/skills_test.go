//go:build conformance

package conformance

import (
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
)

// skillsChecks is how many checks the scenarios about skills have with the server of
// servers/skills. Each must succeed: a check that is skipped has lost something on the way.
const skillsChecks = 45

// The scenarios about skills (SEP-2640) test an extension that Dormouse does not know. The
// suite does not score them, and they belong to no version: --force runs them.
func TestSkillsScenariosPass(t *testing.T) {
	suite, command := installSuite(t), skillsServer(t)
	urls := startDormouse(t, map[string]server{"stdio": {Command: command[0], Args: command[1:]}})
	urls["group"] = plainGroup("stdio", urls["stdio"])
	far := startSkills(t, command)
	urls["remote"] = startRemotes(t, map[string]string{"remote": far})["remote"]
	urls["directly"] = far
	var rows []row
	for _, name := range []string{"directly", "stdio", "group", "remote"} {
		t.Run(name, func(t *testing.T) {
			rows = append(rows, row{name + ", skills-" + revision2026, runSkills(t, suite, name, urls[name])})
		})
	}
	t.Logf("lanes:\n%s", table(rows))
}

// skillsServer installs servers/skills and returns the command that serves it over stdio.
func skillsServer(t *testing.T) []string {
	t.Helper()
	const program = "server.mjs"
	from := filepath.Join("servers", "skills")
	dir := programtest.NodeModules(t, filepath.Join("conformance", "server-skills"), from, nil)
	programtest.Copy(t, filepath.Join(from, program), filepath.Join(dir, program))
	return []string{programtest.Tool(t, "node", programtest.NodeHelp), filepath.Join(dir, program)}
}

// startSkills starts the HTTP server of servers/skills, and returns its URL.
func startSkills(t *testing.T, command []string) string {
	t.Helper()
	address := commontest.FreeAddress(t)
	awaitListening(t, programtest.Start(t, nil, append(command, "--http", address)...), address)
	return "http://" + address + "/mcp"
}

// runSkills runs the scenarios about skills at a URL, in a lane of that name.
func runSkills(t *testing.T, suite suite, lane, url string) (all []scenario) {
	t.Helper()
	discover(t, url)
	succeeded := 0
	for _, name := range []string{"sep-2640-skills-enumeration", "sep-2640-skills-manifest", "sep-2640-skills-directory"} {
		want := requirements{scored: []string{name}}
		results := suite.run(t, lane+"-"+name, url, want, "--scenario", name, "--spec-version", revision2026, "--force")
		all = append(all, results...)
		for _, problem := range problemsOf(results) {
			t.Error(problem)
		}
		succeeded += results[0].count(success)
	}
	if succeeded != skillsChecks {
		t.Errorf("%d checks about skills succeeded, want %d", succeeded, skillsChecks)
	}
	return all
}
