package shared_test

import (
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// scenariosFile is the index: it names the test of each scenario.
const scenariosFile = "testdata/scenarios.md"

func TestScenarioIndex(t *testing.T) {
	text, err := os.ReadFile(scenariosFile)
	commontest.OK(t, err)
	report(t, checkScenarios(string(text), load(t, "..")))
}

// scenario is a row of the index.
type scenario struct {
	line  int
	id    string   // "" in a table that does not list scenarios
	tests []string // package.Name or package.Name/subtest
}

var (
	scenarioID    = regexp.MustCompile(`^([CRLE]-|P)[1-9][0-9]*$`)
	idsInComments = regexp.MustCompile(`\b[A-OQ-Z]-[1-9][0-9]*\b`)
	testName      = regexp.MustCompile(`^[a-z][a-z0-9]*\.(Test|Fuzz)[A-Z0-9]\w*(/.+)?$`)
	codeSpan      = regexp.MustCompile("`([^`]*)`")
)

// readScenarios reads the tables of the index.
func readScenarios(text string) (rows []scenario, problems []string) {
	columns := 0 // number of columns in the current table, 0 outside of a table
	for i, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "|") {
			columns = 0
			continue
		}
		place := fmt.Sprintf("%s:%d: ", scenariosFile, i+1)
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for c := range cells {
			cells[c] = strings.TrimSpace(cells[c])
		}
		if head := columns == 0; head {
			if columns = len(cells); cells[columns-1] != "shown by" {
				problems = append(problems, place+`the last column of a table is "shown by"`)
			}
			continue
		}
		if len(cells) != columns || slices.Contains(cells, "") {
			problems = append(problems, place+"a row needs a text in each column of its table")
			continue
		}
		if strings.Trim(line, "|-") == "" {
			continue
		}
		row := scenario{line: i + 1}
		if columns == 3 {
			row.id = cells[0]
		}
		shown := cells[columns-1]
		for _, span := range codeSpan.FindAllStringSubmatch(shown, -1) {
			row.tests = append(row.tests, span[1])
		}
		if rest := strings.Trim(codeSpan.ReplaceAllString(shown, ""), ", "); rest != "" {
			problems = append(problems, fmt.Sprintf("%s%q is no test", place, rest))
		}
		rows = append(rows, row)
	}
	return rows, problems
}

// checkScenarios checks that the index has each scenario once, and that the tests exist.
func checkScenarios(text string, files []file) []string {
	rows, problems := readScenarios(text)
	tests, named := testsOf(files)
	seen := map[string]scenario{}
	for _, row := range rows {
		place := fmt.Sprintf("%s:%d: ", scenariosFile, row.line)
		if row.id != "" {
			if _, twice := seen[row.id]; twice {
				problems = append(problems, place+row.id+" is in the index twice")
			}
			if !scenarioID.MatchString(row.id) {
				problems = append(problems, fmt.Sprintf("%s%q is no id of a scenario", place, row.id))
			}
			seen[row.id] = row
		}
		if len(row.tests) == 0 {
			problems = append(problems, place+"no test")
		}
		for _, name := range row.tests {
			if function, _, _ := strings.Cut(name, "/"); !testName.MatchString(name) || !tests[function] {
				problems = append(problems, fmt.Sprintf("%sthere is no test %q", place, name))
			}
		}
	}
	return append(problems, checkNamed(named, seen)...)
}

// claim is a test that names scenarios in its comment.
type claim struct {
	ids   []string
	plays bool // the test is in a file that plays scenarios
}

// checkNamed checks the tests that name scenarios. Each scenario must have a row, and a
// test in a file that plays scenarios must be in it.
func checkNamed(named map[string]claim, rows map[string]scenario) (problems []string) {
	for _, test := range slices.Sorted(maps.Keys(named)) {
		for _, id := range named[test].ids {
			row, there := rows[id]
			listed := slices.ContainsFunc(row.tests, func(name string) bool { return name == test || strings.HasPrefix(name, test+"/") })
			switch {
			case !there:
				problems = append(problems, fmt.Sprintf("%s names %s, which has no row in %s: say what the test shows", test, id, scenariosFile))
			case named[test].plays && !listed:
				problems = append(problems, fmt.Sprintf("%s says that it shows %s, and is not in its row of %s", test, id, scenariosFile))
			}
		}
	}
	return problems
}

// testsOf returns all tests and fuzz targets, by package.Name, and the scenarios that
// they name.
func testsOf(files []file) (tests map[string]bool, named map[string]claim) {
	tests, named = map[string]bool{}, map[string]claim{}
	for _, f := range files {
		if !f.test {
			continue
		}
		for _, d := range f.syntax.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil {
				continue
			}
			name := path.Base(f.dir) + "." + fn.Name.Name
			if !testName.MatchString(name) {
				continue
			}
			tests[name] = true
			named[name] = claim{idsInComments.FindAllString(fn.Doc.Text(), -1), strings.HasPrefix(path.Base(f.path), "scenario_")}
		}
	}
	return tests, named
}

// This test has a tree and indexes that break each of the rules.
func TestScenarioRulesFindWhatIsWrong(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"scenario_a_test.go": "package a\n\n// R-1, R-2: both.\nfunc TestA() {}\n\nfunc helper() {}\n",
		"b_test.go":          "//go:build e2e\n\npackage a\n\n// R-2, as TestA shows it.\nfunc TestB() {}\n",
		"c.go":               "package a\n\nfunc TestC() {}\n",
	} {
		dir := filepath.Join(root, "infra", "a")
		commontest.OK(t, os.MkdirAll(dir, 0o700))
		commontest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	files := load(t, root)
	const head = "| id | asks | shown by |\n|---|---|---|\n"
	tests := []struct {
		name, text string
		want       []string
	}{
		{"nothing", head + "| R-1 | a | `a.TestA/x, y`, `a.TestB` |\n| R-2 | b | `a.TestA` |\n", nil},
		{
			"everything",
			head + "| R-1 | a | `a.TestC` |\n| R-1 | a | `a.helper` and so on |\n| R-2 | b | |\n| R-02 | b | `a.TestB` |\n| R-3 | c | ``  |\n\n| when | test |\n",
			[]string{
				`:4: "and so on" is no test`,
				":5: a row needs a text in each column of its table",
				`:9: the last column of a table is "shown by"`,
				`:3: there is no test "a.TestC"`,
				":4: R-1 is in the index twice",
				`:4: there is no test "a.helper"`,
				`:6: "R-02" is no id of a scenario`,
				`:7: there is no test ""`,
				"a.TestA says that it shows R-1, and is not in its row",
				"a.TestA names R-2, which has no row in " + scenariosFile + ": say what the test shows",
				"a.TestB names R-2, which has no row in " + scenariosFile + ": say what the test shows",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := checkScenarios(tt.text, files)
			for i := range got {
				got[i] = strings.TrimPrefix(strings.TrimSuffix(got[i], " of "+scenariosFile), scenariosFile)
			}
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
