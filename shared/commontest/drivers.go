package commontest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// RowsRunOnEachDriver fails the test of each acceptance row that has no test on every
// driver of the store: one that calls storetest.Each or storetest.InTime, itself or
// through functions of its package. reasons has the rows that need no such test, with the
// reason. Names and folders are those of [RowsHaveTests].
func RowsRunOnEachDriver(t *testing.T, root, folder string, rows map[string][]string, reasons map[string]string) {
	t.Helper()
	folders := map[string]map[string]bool{}
	for row, names := range rows {
		holds := ""
		for _, name := range names {
			in, test, elsewhere := strings.Cut(name, ":")
			if !elsewhere {
				in, test = folder, name
			}
			if _, read := folders[in]; !read {
				folders[in] = onEachDriver(t, filepath.Join(root, filepath.FromSlash(in)))
			}
			if folders[in][test] {
				holds = name
			}
		}
		switch reason, excused := reasons[row]; {
		case holds == "" && reason == "":
			t.Errorf("%s has no test that runs on each driver, and no reason for it", row)
		case holds != "" && excused:
			t.Errorf("%s needs no reason: %s runs on each driver", row, holds)
		}
	}
	for row := range reasons {
		if rows[row] == nil {
			t.Errorf("there is a reason for %s, which is no row", row)
		}
	}
}

// onEachDriver returns the functions in the tests of a folder that run something on each
// driver.
func onEachDriver(t *testing.T, folder string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	names, found := map[string]map[string]bool{}, map[string]bool{} // what each function names, and which are found
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Body != nil {
				of := map[string]bool{}
				names[f.Name.Name] = of
				ast.Inspect(f.Body, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.SelectorExpr:
						if x, ok := n.X.(*ast.Ident); ok && x.Name == "storetest" && (n.Sel.Name == "Each" || n.Sel.Name == "InTime") {
							found[f.Name.Name] = true
						}
					case *ast.Ident:
						of[n.Name] = true
					}
					return true
				})
			}
		}
	}
	for grown := true; grown; {
		grown = false
		for name, of := range names {
			for other := range of {
				if found[other] && !found[name] {
					found[name], grown = true, true
				}
			}
		}
	}
	return found
}
