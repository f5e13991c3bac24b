package shared_test

import (
	"go/ast"
	"path"
	"regexp"
	"strings"
	"testing"
)

// scenariosFile is the index: it names the test of each scenario.
const scenariosFile = "testdata/scenarios.md"

var (
	idsInComments = regexp.MustCompile(`\b[A-OQ-Z]-[1-9][0-9]*\b`)
	namedInIndex  = regexp.MustCompile("`([a-z][a-z0-9]*\\.\\w+)[`/]")
	testName      = regexp.MustCompile(`^(Test|Fuzz)[A-Z0-9]`)
)

func TestScenarioIndex(t *testing.T) {
	index, tests := fileOf(t, scenariosFile), testsOf(load(t, ".."))
	for _, name := range namedInIndex.FindAllStringSubmatch(index, -1) {
		if tests[name[1]] == nil {
			t.Errorf("%s: there is no test %s", scenariosFile, name[1])
		}
	}
	for name, test := range tests {
		for _, id := range idsInComments.FindAllString(test.Doc.Text(), -1) {
			if !strings.Contains(index, "\n| "+id+" | ") {
				t.Errorf("%s names %s, which has no row in %s", name, id, scenariosFile)
			}
		}
	}
}

// testsOf returns all tests and fuzz targets, by package.Name.
func testsOf(files []file) map[string]*ast.FuncDecl {
	tests := map[string]*ast.FuncDecl{}
	for _, f := range files {
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Recv == nil && testName.MatchString(fn.Name.Name) {
				tests[path.Base(f.dir)+"."+fn.Name.Name] = fn
			}
		}
	}
	return tests
}
