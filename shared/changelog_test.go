package shared_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	history := git(t, "rev-parse", "--is-shallow-repository") == "false" // an archive and a shallow clone have none
	later := "HEAD"
	for _, section := range sections[1:] {
		head, _, _ := strings.Cut(section, "\n")
		parts := form.FindStringSubmatch(section)
		if parts == nil {
			t.Errorf("%s: want [VERSION] - YYYY-MM-DD, an empty line, and Commit HASH. Store: SQLite N.", head)
			continue
		}
		commits[parts[3]] = true
		if !history {
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

// git returns the output of git, or "" if it fails.
func git(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", args...).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
