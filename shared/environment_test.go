package shared_test

import (
	"go/ast"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// ownVariable matches the names that belong to Dormouse, AWS or OpenTelemetry.
// readVariable matches the name of any variable. A name that ends with _ is the beginning
// of names.
var (
	ownVariable  = regexp.MustCompile(`^(DORMOUSE|OTEL|AWS)_[A-Z0-9_]+$`)
	readVariable = regexp.MustCompile(`^[A-Z][A-Z0-9_]+_?$`)
	flagVariable = regexp.MustCompile(`\benv:"([A-Z0-9_]+)"`)
	pageVariable = regexp.MustCompile("`([A-Z][A-Z0-9_]+\\*?)`")
)

// readers are the functions whose string arguments are names of variables.
var readers = []string{"Getenv", "LookupEnv", "getenv", "only", "get", "lookup"}

// variablesOf returns the names of variables in a file: every ownVariable in a string,
// and every other variable that the file reads.
func variablesOf(f *ast.File) (names []string) {
	text := func(e ast.Expr) string {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				return s
			}
		}
		return ""
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			s := text(n)
			for _, part := range []string{s, strings.SplitN(s, "=", 2)[0]} {
				if ownVariable.MatchString(part) {
					names = append(names, part)
				}
			}
			for _, tag := range flagVariable.FindAllStringSubmatch(s, -1) {
				names = append(names, tag[1])
			}
		case *ast.CallExpr:
			called := ""
			switch fun := n.Fun.(type) {
			case *ast.Ident:
				called = fun.Name
			case *ast.SelectorExpr:
				called = fun.Sel.Name
			}
			for _, arg := range n.Args {
				if s := text(arg); slices.Contains(readers, called) && readVariable.MatchString(s) {
					names = append(names, s)
				}
			}
		}
		return true
	})
	return names
}

// onPage reports whether the page names a variable, or the beginning of its name.
func onPage(named map[string]bool, name string) bool {
	for n := range named {
		if begin, is := strings.CutSuffix(n, "*"); n == name || is && strings.HasPrefix(name, begin) || strings.HasSuffix(name, "_") && strings.HasPrefix(n, name) {
			return true
		}
	}
	return false
}

func TestTheEnvironmentPageHasEveryVariable(t *testing.T) {
	raw, err := os.ReadFile("../docs/environment.md")
	commontest.OK(t, err)
	named := map[string]bool{}
	for _, name := range pageVariable.FindAllStringSubmatch(string(raw), -1) {
		named[name[1]] = true
	}
	if len(named) < 50 {
		t.Fatalf("the page names %d variables; is its form another?", len(named))
	}
	var text strings.Builder
	missing := map[string]bool{}
	for _, f := range load(t, "..") {
		if f.test || strings.HasPrefix(f.path, "infra/proof/") || strings.HasPrefix(f.path, "infra/internal/emulator/") || strings.Contains(f.path, "testdata/") || strings.HasSuffix(f.dir, "test") {
			continue
		}
		source, err := os.ReadFile("../" + f.path)
		commontest.OK(t, err)
		text.Write(source)
		for _, name := range variablesOf(f.syntax) {
			if !onPage(named, name) && !missing[name] {
				missing[name] = true
				t.Errorf("%s: docs/environment.md does not have %s", f.path, name)
			}
		}
	}
	// A library reads the first three names. Code assembles the names of OpenTelemetry.
	elsewhere := regexp.MustCompile(`^(LISTEN_FDS|LISTEN_PID|NOTIFY_SOCKET|OTEL_.*)$`)
	for name := range named {
		if !strings.Contains(text.String(), strings.TrimSuffix(name, "*")) && !elsewhere.MatchString(name) {
			t.Errorf("docs/environment.md has %s, which no program reads", name)
		}
	}
}
