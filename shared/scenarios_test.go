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
)

// scenariosFile is the index: it names the test of each scenario.
const scenariosFile = "scenarios.md"

// required returns the scenarios that must be in the index. The index may have more.
func required() []string {
	var ids []string
	for _, r := range []struct {
		prefix      string
		first, last int
	}{{"R-", 1, 108}, {"C-", 1, 92}, {"P", 1, 7}, {"B-", 1, 28}, {"L-", 1, 45}, {"E-", 1, 20}} {
		for n := r.first; n <= r.last; n++ {
			ids = append(ids, fmt.Sprint(r.prefix, n))
		}
	}
	return ids
}

func TestScenarioIndex(t *testing.T) {
	text, err := os.ReadFile(scenariosFile)
	if err != nil {
		t.Fatal(err)
	}
	report(t, checkScenarios(string(text), required(), load(t, "..")))
}

// scenario is a row of the index.
type scenario struct {
	line  int
	id    string // "" in a table that does not list scenarios
	asks  string
	tests []string // package.Name or package.Name/subtest
	none  string   // why there are none
}

var (
	scenarioID    = regexp.MustCompile(`^([CRLMBE]-|P)[1-9][0-9]*$`)
	idsInComments = regexp.MustCompile(`\b[CRLMBE]-[1-9][0-9]*\b`)
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
		row := scenario{line: i + 1, asks: cells[columns-2]}
		if columns == 3 {
			row.id = cells[0]
		}
		shown := cells[columns-1]
		if why, none := strings.CutPrefix(shown, "n/a:"); none {
			row.none = strings.TrimSpace(why)
		} else {
			for _, span := range codeSpan.FindAllStringSubmatch(shown, -1) {
				row.tests = append(row.tests, span[1])
			}
			if rest := strings.Trim(codeSpan.ReplaceAllString(shown, ""), ", "); rest != "" {
				problems = append(problems, fmt.Sprintf("%s%q is neither a test nor n/a", place, rest))
			}
		}
		rows = append(rows, row)
	}
	return rows, problems
}

// checkScenarios checks that the index has all required scenarios, and that their tests
// exist.
func checkScenarios(text string, required []string, files []file) []string {
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
		if len(row.tests) == 0 && len(strings.Fields(row.none)) < 3 {
			problems = append(problems, place+"no test, and no reason why there is none")
		}
		for _, name := range row.tests {
			if function, _, _ := strings.Cut(name, "/"); !testName.MatchString(name) || !tests[function] {
				problems = append(problems, fmt.Sprintf("%sthere is no test %q", place, name))
			}
		}
	}
	for _, id := range required {
		if _, ok := seen[id]; !ok {
			problems = append(problems, fmt.Sprintf("%s: %s is not there", scenariosFile, id))
		}
	}
	return append(problems, checkNamed(named, seen)...)
}

// checkNamed checks the tests that name scenarios: each must be in the rows of those
// scenarios.
func checkNamed(named map[string][]string, rows map[string]scenario) (problems []string) {
	for _, test := range slices.Sorted(maps.Keys(named)) {
		for _, id := range named[test] {
			listed := slices.ContainsFunc(rows[id].tests, func(name string) bool { return name == test || strings.HasPrefix(name, test+"/") })
			if !listed {
				problems = append(problems, fmt.Sprintf("%s says that it shows %s, and is not in its row of %s", test, id, scenariosFile))
			}
		}
	}
	return problems
}

// testsOf returns all tests and fuzz targets, by package.Name. For the files that play
// scenarios, named has the scenarios that each test names.
func testsOf(files []file) (tests map[string]bool, named map[string][]string) {
	tests, named = map[string]bool{}, map[string][]string{}
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
			if strings.HasPrefix(path.Base(f.path), "scenario_") {
				named[name] = idsInComments.FindAllString(fn.Doc.Text(), -1)
			}
		}
	}
	return tests, named
}

// This test has a tree and indexes that break each of the rules.
func TestScenarioRulesFindWhatIsWrong(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"scenario_a_test.go": "package a\n\n// R-1, R-2: both.\nfunc TestA() {}\n\nfunc helper() {}\n",
		"b_test.go":          "//go:build e2e\n\npackage a\n\n// R-9 is no claim in this file.\nfunc TestB() {}\n",
		"c.go":               "package a\n\nfunc TestC() {}\n",
	} {
		dir := filepath.Join(root, "infra", "a")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := load(t, root)
	const head = "| id | asks | shown by |\n|---|---|---|\n"
	tests := []struct {
		name, text string
		want       []string
	}{
		{"nothing", head + "| R-1 | a | `a.TestA/x, y`, `a.TestB` |\n| R-2 | b | `a.TestA` |\n| R-3 | c | n/a: for a reason |\n", nil},
		{
			"everything",
			head + "| R-1 | a | `a.TestC` |\n| R-1 | a | `a.helper` and so on |\n| R-2 | b | n/a: no |\n| R-02 | b | n/a: for a reason |\n| R-4 |  | x |\n\n| when | test |\n",
			[]string{
				`scenarios.md:4: "and so on" is neither a test nor n/a`,
				"scenarios.md:7: a row needs a text in each column of its table",
				`scenarios.md:9: the last column of a table is "shown by"`,
				`scenarios.md:3: there is no test "a.TestC"`,
				"scenarios.md:4: R-1 is in the index twice",
				`scenarios.md:4: there is no test "a.helper"`,
				"scenarios.md:5: no test, and no reason why there is none",
				`scenarios.md:6: "R-02" is no id of a scenario`,
				"scenarios.md: R-3 is not there",
				"a.TestA says that it shows R-1, and is not in its row of scenarios.md",
				"a.TestA says that it shows R-2, and is not in its row of scenarios.md",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := checkScenarios(tt.text, []string{"R-1", "R-2", "R-3"}, files)
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
