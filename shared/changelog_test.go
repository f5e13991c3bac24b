package shared_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestTheChangelogNamesCommitsOfTheHistory reads CHANGELOG.md as its readers do: each
// release has a version of SemVer, a day and a commit. The newest release comes first.
func TestTheChangelogNamesCommitsOfTheHistory(t *testing.T) {
	text, err := os.ReadFile("../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(text), "\n## ")[1:]
	if len(sections) == 0 || !strings.HasPrefix(sections[0], "[Unreleased]\n") {
		t.Fatal("CHANGELOG.md does not begin with a section [Unreleased]")
	}
	form := regexp.MustCompile(`^\[((?:0|[1-9]\d*)(?:\.(?:0|[1-9]\d*)){2}(?:-[0-9A-Za-z.-]+)?)\] - (\d{4}-\d{2}-\d{2})\n\nCommit ([0-9a-f]{40})\.\n`)
	commits := map[string]bool{}
	later := "HEAD"
	for _, section := range sections[1:] {
		head, _, _ := strings.Cut(section, "\n")
		parts := form.FindStringSubmatch(section)
		if parts == nil {
			t.Errorf("%s: want [VERSION] - YYYY-MM-DD, an empty line, and Commit HASH.", head)
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
	}
	tested, err := os.ReadFile("../infra/stack/releases.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(tested)) {
		if commit, what, _ := strings.Cut(line, " "); !strings.HasPrefix(commit, "#") && !commits[commit] {
			t.Errorf("infra/stack/releases.txt has %s (%s), and CHANGELOG.md does not", commit, strings.TrimSpace(what))
		}
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
