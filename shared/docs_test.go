package shared_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

var update = flag.Bool("update", false, "write docs/llms.txt")

var (
	linkInPage = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	codeInPage = regexp.MustCompile("(?s)```(.*?)\n```")
	notAnchor  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	namedTest  = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w+)[`/]")
	namedFile  = regexp.MustCompile("`((?:shared|infra|functions|events|docs)/[\\w./*-]+)`")
)

// pages returns the text of each Markdown file below root, by its path with slashes.
func pages(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			if name != root && (strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if path.Ext(base) != ".md" {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		all[filepath.ToSlash(rel)] = string(text)
		return err
	})
	commontest.OK(t, err)
	return all
}

// anchors returns the fragments that a page's headings give.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(codeInPage.ReplaceAllString(text, "")) {
		if strings.HasPrefix(line, "#") {
			title := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
			all[strings.ReplaceAll(notAnchor.ReplaceAllString(title, ""), " ", "-")] = true
		}
	}
	return all
}

func TestLinksInTheDocumentsLeadSomewhere(t *testing.T) {
	all, followed := pages(t, ".."), 0
	for from, text := range all {
		for _, link := range linkInPage.FindAllStringSubmatch(codeInPage.ReplaceAllString(text, ""), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			followed++
			target, fragment, _ := strings.Cut(link[1], "#")
			to := from
			if target != "" {
				to = path.Join(path.Dir(from), target)
			}
			if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(to))); err != nil {
				t.Errorf("%s: there is no %s", from, link[1])
			} else if fragment != "" && !anchors(all[to])[fragment] {
				t.Errorf("%s: %s has no heading #%s", from, to, fragment)
			}
		}
	}
	if followed < 100 {
		t.Errorf("the pages have %d links; is their form another?", followed)
	}
}

// serversFile makes a whole JSON text of the JSON on a page. A page may show a member
// alone. If the member is a section of x-dormouse, serversFile puts it into a servers
// file. ok is false if text is neither JSON nor a member.
func serversFile(text string) (file string, ok bool) {
	if json.Valid([]byte(text)) {
		return text, true
	}
	var member map[string]json.RawMessage
	if json.Unmarshal([]byte("{"+text+"}"), &member) != nil {
		return text, false
	}
	for name := range member {
		switch name {
		case "access", "connect", "groups", "limits":
			return `{"mcpServers": {"files": {"command": "x"}}, "x-dormouse": {` + text + `}}`, true
		}
	}
	return "{" + text + "}", true
}

func TestServersFilesInTheDocumentsAreRead(t *testing.T) {
	read := 0
	for name, text := range pages(t, "..") {
		for _, block := range codeInPage.FindAllStringSubmatch(text, -1) {
			file, isJSON := strings.CutPrefix(block[1], "json\n")
			if !isJSON {
				continue
			}
			if file, isJSON = serversFile(file); !isJSON {
				t.Errorf("%s: this is no JSON, nor a member of an object:\n%s", name, block[1])
			}
			if !strings.Contains(file, `"mcpServers"`) {
				continue
			}
			read++
			c, warnings, err := serversfile.Parse([]byte(file), name, func(variable string) (string, bool) {
				if variable == "HOME" {
					return "/home/ada", true
				}
				return "value", true
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			for _, r := range c.Rejected() {
				t.Errorf("%s: server %q: %v", name, r.Name, r)
			}
			for _, w := range warnings {
				t.Errorf("%s: %v", name, w)
			}
		}
	}
	commontest.EqualIn(t, "no page has a servers file", false, read == 0)
}

// Tests and files that pages name exist. CHANGELOG.md may name what is gone.
func TestWhatTheDocumentsNameExists(t *testing.T) {
	there := map[string]bool{}
	for name := range testsOf(load(t, "..")) {
		there[name[strings.Index(name, ".")+1:]] = true
	}
	for page, text := range pages(t, "..") {
		if page == "CHANGELOG.md" {
			continue
		}
		for _, name := range namedTest.FindAllStringSubmatch(text, -1) {
			if !there[name[1]] {
				t.Errorf("%s: there is no test %s", page, name[1])
			}
		}
		for _, name := range namedFile.FindAllStringSubmatch(text, -1) {
			if found, err := filepath.Glob(filepath.Join("..", name[1])); err != nil || len(found) == 0 {
				t.Errorf("%s: there is no %s", page, name[1])
			}
		}
	}
}

var decided = regexp.MustCompile(`^<!-- (run|not run: .+) -->$`)

// Each block of commands is run by TestE2EBlocksOfTheDocumentsRun, or says why it is not.
func TestBlocksOfCommandsAreRunOrSayWhyNot(t *testing.T) {
	for name, text := range pages(t, "..") {
		if name != "README.md" && !strings.HasPrefix(name, "docs/") {
			continue
		}
		before := ""
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if line == "```sh" && !decided.MatchString(before) {
				t.Errorf("%s: write <!-- run --> or <!-- not run: WHY --> above each block of commands; this one is below %q", name, before)
			}
			before = line
		}
	}
}

func TestTheIndexHasEveryPage(t *testing.T) {
	all := pages(t, "..")
	site, err := os.ReadFile("../infra/site/mkdocs.yml")
	commontest.OK(t, err)
	for name := range all {
		page, is := strings.CutPrefix(name, "docs/")
		if is && page != "README.md" && !strings.Contains(all["docs/README.md"], "]("+page+")") {
			t.Errorf("docs/README.md does not name %s", name)
		}
		if is && !strings.Contains(string(site), ": "+page+"\n") {
			t.Errorf("infra/site/mkdocs.yml does not name %s below nav", page)
		}
	}
}

// llms returns the list of pages for programs that read them (llmstxt.org): the title of
// each page and its first sentence.
func llms(all map[string]string) string {
	var lines []string
	for name, text := range all {
		page, is := strings.CutPrefix(name, "docs/")
		if !is && name != "README.md" && name != "SECURITY.md" && name != "ARCHITECTURE.md" {
			continue
		}
		if !is {
			page = "../" + name
		}
		title, rest, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
		first, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
		line := fmt.Sprintf("- [%s](%s)", title, page)
		if sentence, _, ends := strings.Cut(first, ". "); ends && !strings.ContainsAny(first[:1], "|#`") {
			line += ": " + linkInPage.ReplaceAllString(strings.ReplaceAll(sentence, "[", ""), "") + "."
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return "# Dormouse\n\n> MCP servers that sleep between messages.\n\n" + strings.Join(lines, "\n") + "\n"
}

func TestTheListForProgramsHasEveryPage(t *testing.T) {
	const name = "../docs/llms.txt"
	got := llms(pages(t, ".."))
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil { //nolint:gosec // everybody reads it
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	commontest.OK(t, err)
	if diff := gocmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/llms.txt is not what the pages say; go test ./shared -run ForPrograms -update writes it:\n%s", diff)
	}
}
