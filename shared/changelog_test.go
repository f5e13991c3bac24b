package shared_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// TestTheChangelogNamesCommitsOfTheHistory reads CHANGELOG.md as its readers do: each
// release has a version of SemVer, a day, a commit, and the version of its store's file. The
// newest release comes first.
func TestTheChangelogNamesCommitsOfTheHistory(t *testing.T) {
	text, err := os.ReadFile("../CHANGELOG.md")
	commontest.OK(t, err)
	sections := strings.Split(string(text), "\n## ")[1:]
	if len(sections) == 0 || !strings.HasPrefix(sections[0], "[Unreleased]\n") {
		t.Fatal("CHANGELOG.md does not begin with a section [Unreleased]")
	}
	form := regexp.MustCompile(`^\[((?:0|[1-9]\d*)(?:\.(?:0|[1-9]\d*)){2}(?:-[0-9A-Za-z.-]+)?)\] - (\d{4}-\d{2}-\d{2})\n\nCommit ([0-9a-f]{40})\. Store: SQLite (\d+)\.\n`)
	commits := map[string]bool{}
	later := "HEAD"
	for _, section := range sections[1:] {
		head, _, _ := strings.Cut(section, "\n")
		parts := form.FindStringSubmatch(section)
		if parts == nil {
			t.Errorf("%s: want [VERSION] - YYYY-MM-DD, an empty line, and Commit HASH. Store: SQLite N.", head)
			continue
		}
		commits[parts[3]] = true
		if !hasHistory(t) {
			continue
		}
		day := git(t, "show", "-s", "--format=%cs", parts[3])
		if day != parts[2] {
			t.Errorf("%s: git knows the commit as of %q", head, day)
		}
		if git(t, "merge-base", later, parts[3]) != parts[3] {
			t.Errorf("%s: the commit is no ancestor of %s", head, later)
		}
		later = parts[3]
		if schema := git(t, "grep", "-h", "schemaVersion = ", parts[3], "--", ":(top)*/sqlitestore/schema.go"); !strings.HasSuffix(strings.TrimSpace(schema), "schemaVersion = "+parts[4]) {
			t.Errorf("%s: its stores do not have version %s", head, parts[4])
		}
	}
	tested, err := os.ReadFile("../infra/stack/releases.txt")
	commontest.OK(t, err)
	for line := range strings.Lines(string(tested)) {
		if commit, what, _ := strings.Cut(line, " "); !strings.HasPrefix(commit, "#") && !commits[commit] {
			t.Errorf("infra/stack/releases.txt has %s (%s), and CHANGELOG.md does not", commit, strings.TrimSpace(what))
		}
	}
}

// An operator reads the version of the store's file before an upgrade.
func TestTheChangelogNamesTheVersionOfTheStore(t *testing.T) {
	text, err := os.ReadFile("../CHANGELOG.md")
	commontest.OK(t, err)
	path := filepath.Join(t.TempDir(), "store.db")
	store, err := sqlitestore.Open(path)
	commontest.OK(t, err)
	commontest.OK(t, store.Close())
	file, err := os.ReadFile(path)
	commontest.OK(t, err)
	const userVersion = 60 // its place in the head of a file: sqlite.org/fileformat.html
	want := fmt.Sprintf("## [Unreleased]\n\nStore: SQLite %d.\n", binary.BigEndian.Uint32(file[userVersion:]))
	if !strings.Contains(string(text), want) {
		t.Errorf("CHANGELOG.md does not have %q; say under Upgrade what happens to older files", want)
	}
}

// hasHistory reports whether the commits are here: an archive and a shallow clone have none.
func hasHistory(t *testing.T) bool {
	t.Helper()
	return git(t, "rev-parse", "--is-shallow-repository") == "false"
}

// git returns the output of git, or "" if it fails.
func git(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", args...).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// Until the release, what is changed later may take a flag away that an entry names. Only the
// parts Upgrade and Removed name what is gone.
func TestTheChangelogNamesFlagsThatThereAre(t *testing.T) {
	flags := flagsOfCommands(t)
	text, err := os.ReadFile("../CHANGELOG.md")
	commontest.OK(t, err)
	for _, line := range goneFlags(unreleased(string(text)), flags) {
		t.Errorf("CHANGELOG.md, [Unreleased]: %s", line)
	}
}

func TestAFlagThatIsGoneIsFound(t *testing.T) {
	section := "### Removed\n\n- `dormouse run --old`\n\n### Fixed\n\n- `dormouse keys rotate --old ID` and `run --new -- npx -y it`\n"
	got := goneFlags(section, map[string][]string{"run": {"--new"}, "keys rotate": {"--days"}})
	if want := []string{"dormouse keys rotate has no flag --old"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// unreleased returns the first section of a changelog.
func unreleased(changelog string) string {
	return strings.Split(changelog, "\n## ")[1]
}

// flagsOfCommands returns the flags of each command, as docs/cli.md has them.
func flagsOfCommands(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../docs/cli.md")
	commontest.OK(t, err)
	all := map[string][]string{}
	flag := regexp.MustCompile("`(--?[a-z-]+)")
	for _, section := range strings.Split(string(text), "\n## dormouse ")[1:] {
		name, rest, _ := strings.Cut(section, "\n")
		for _, found := range flag.FindAllStringSubmatch(rest, -1) {
			all[name] = append(all[name], found[1])
		}
	}
	return all
}

// goneFlags returns what is wrong with the commands in code spans of a section.
func goneFlags(section string, flags map[string][]string) (wrong []string) {
	span, flag := regexp.MustCompile("`([^`\n]+)`"), regexp.MustCompile("^--[a-z-]+")
	for _, part := range strings.Split(section, "### ") {
		if strings.HasPrefix(part, "Removed") || strings.HasPrefix(part, "Upgrade") {
			continue
		}
		for _, code := range span.FindAllStringSubmatch(part, -1) {
			typed, _, _ := strings.Cut(strings.TrimPrefix(code[1], "dormouse "), " -- ")
			words := strings.Fields(typed)
			name := strings.Join(words[:min(2, len(words))], " ")
			if flags[name] == nil {
				name = words[0]
			}
			for _, word := range words {
				if f := flag.FindString(word); f != "" && flags[name] != nil && !slices.Contains(flags[name], f) {
					wrong = append(wrong, fmt.Sprintf("dormouse %s has no flag %s", name, f))
				}
			}
		}
	}
	return wrong
}
