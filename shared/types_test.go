package shared_test

import (
	"fmt"
	"go/ast"
	"slices"
	"testing"
)

// A larger type probably hides several types, however short its files are.
const (
	maxMethods = 30
	maxFields  = 20
)

// large are the types that may be larger, each with its reason.
func large() map[string]string {
	return map[string]string{
		"shared/sqlitestore.Store":      "it implements all interfaces of session.Store",
		"shared/dynamostore.Store":      "it implements all interfaces of session.Store",
		"shared/intercept.Store":        "it has a method for each of session.Store",
		"shared/sessiontest.Memory":     "it implements all interfaces of session.Store",
		"shared/session.Session":        "it is a record, with a field for each column",
		"shared/relay/frametest.Frame":  "it has the fields of all types of frames, so that a test can write any of them",
		"shared/relay/frame.Deliver":    "it has a field for each of the frame's header",
		"shared/session.Box":            "it is a record, with a field for each column",
		"shared/relay/relayhost.Config": "it has a field for each setting",
		"shared/relay/runner.Config":    "it has a field for each setting",
		"shared/catalog.serverReader":   "it has a method for each setting of a server",
		"shared/box.Server":             "it has a field for each setting",
		"infra/local.Config":            "it has a field for each setting",
		"shared/front.Options":          "it has a field for each setting",
	}
}

func TestTypesAreSmall(t *testing.T) {
	report(t, checkTypes(load(t, ".."), large()))
}

// checkTypes counts the methods and fields of each type. It does not count those of
// embedded types.
func checkTypes(files []file, allowed map[string]string) (problems []string) {
	methods, fields := map[string]int{}, map[string]int{}
	for _, f := range files {
		if f.test {
			continue
		}
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				methods[f.dir+"."+receiver(fn.Recv.List[0].Type)]++
			}
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if s, ok := spec.Type.(*ast.StructType); ok {
					fields[f.dir+"."+spec.Name.Name] = s.Fields.NumFields()
				}
			}
			return true
		})
	}
	for name, n := range methods {
		if n > maxMethods && allowed[name] == "" {
			problems = append(problems, fmt.Sprintf("%s: %d methods, at most %d: split it by job, or say why not in large", name, n, maxMethods))
		}
	}
	for name, n := range fields {
		if n > maxFields && allowed[name] == "" {
			problems = append(problems, fmt.Sprintf("%s: %d fields, at most %d: split it by job, or say why not in large", name, n, maxFields))
		}
	}
	slices.Sort(problems)
	return problems
}

// receiver is the name of the type that a method belongs to.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	default:
		return ""
	}
}

// This test shows that checkTypes looks at the code: without the list of exceptions, it
// must find the large types.
func TestLargeTypesAreFound(t *testing.T) {
	found := checkTypes(load(t, ".."), nil)
	for _, p := range found {
		t.Log(p)
	}
	if len(found) == 0 {
		t.Error("no type is found to be large, though there are reasons for some")
	}
}
