//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

var (
	// exampleBlock matches a servers file on a page.
	exampleBlock = regexp.MustCompile("(?m)^```json\n((?s:.*?))\n```$")
	// pageScript matches a script that the blocks of a page make.
	pageScript = regexp.MustCompile("(?m)^cat > mine\\.py <<'END'\n((?s:.*?))\nEND$")
)

// example says which tool of an example is called, and what its answer has; or why the
// server of the example is not started.
type example struct{ tool, arguments, want, not string }

// ofPages has the servers of the pages' examples that have a command, by page and name.
// NOTES is the folder with the notes.
var ofPages = map[string]example{
	"README.md files":              {tool: "read_text_file", arguments: `{"path":"NOTES/note.txt"}`, want: "dormice sleep"},
	"docs/servers-file.md files":   {tool: "read_text_file", arguments: `{"path":"NOTES/note.txt"}`, want: "dormice sleep"},
	"docs/local-servers.md mine":   {tool: "hello", arguments: `{}`, want: "hello from mine"},
	"docs/sandbox.md fetch":        {not: "make test-servers fetches a page"},
	"docs/sandbox.md github":       {not: "TestDockerEntriesStartWithoutDocker starts servers from images"},
	"docs/clients.md github":       {not: "its address is of nobody"},
	"docs/one-address.md github":   {not: "there is no such package"},
	"docs/third-parties.md github": {not: "its token is of somebody who has connected"},
}

// A reader copies the examples of the servers file, makes the folders that they name, and
// calls a tool of each server.
func TestE2EExamplesOfThePagesAnswerACall(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	commontest.OK(t, err)
	home := filepath.Join(stdioFolder, "reader") // servers in a sandbox can enter it
	notes := filepath.Join(home, "notes")
	for _, folder := range []string{notes, filepath.Join(home, "srv", "notes")} {
		write(t, filepath.Join(folder, "note.txt"), "dormice sleep\n")
	}
	file, found := map[string]any{}, map[string]bool{}
	for _, path := range append(pages, filepath.Join(root, "README.md")) {
		page, err := filepath.Rel(root, path)
		commontest.OK(t, err)
		text := read(t, path)
		if script := pageScript.FindStringSubmatch(text); script != nil {
			write(t, filepath.Join(home, "srv", "mine", "main.py"), script[1]+"\n")
		}
		for _, block := range exampleBlock.FindAllStringSubmatch(text, -1) {
			var config struct {
				Servers map[string]struct{ Command string } `json:"mcpServers"`
			}
			if json.Unmarshal([]byte(block[1]), &config) != nil {
				continue // it is a part of a file
			}
			var whole struct {
				Servers map[string]any `json:"mcpServers"`
			}
			here := strings.ReplaceAll(block[1], `"/srv/`, `"`+filepath.Join(home, "srv")+"/")
			commontest.OK(t, json.Unmarshal([]byte(here), &whole))
			for name, server := range config.Servers {
				if server.Command == "" || server.Command == "…" {
					continue
				}
				of := page + " " + name
				e, known := ofPages[of]
				found[of] = true
				switch {
				case !known:
					t.Errorf("the example %q is in no row of ofPages", of)
				case e.not == "":
					file[hostedAs(of)] = whole.Servers[name]
				}
			}
		}
	}
	m := machineOf(t, file)
	m.env = append(m.env, "HOME="+home, "FILES_API_KEY=s3cret-42", "PATH=/usr/bin:"+os.Getenv("PATH")) // a Python in somebody's home is closed to a profile
	m.start()
	for of, e := range ofPages {
		if !found[of] {
			t.Errorf("no page has the example %q", of)
		}
		if e.not != "" || !found[of] {
			continue
		}
		c := m.client(hostedAs(of))
		c.patient = 5 * time.Minute // the box has to fetch packages
		if err := c.open(params); err != nil {
			t.Errorf("%s: %v", of, err)
			continue
		}
		if got := c.text(e.tool, strings.ReplaceAll(e.arguments, "NOTES", notes)); !strings.Contains(got, e.want) {
			t.Errorf("%s: %s answered %q, want %q in it", of, e.tool, got, e.want)
		}
	}
}

// hostedAs returns the name under which the server of an example is hosted.
func hostedAs(of string) string {
	return strings.NewReplacer("docs/", "", ".md ", "-").Replace(of)
}
